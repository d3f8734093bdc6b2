#include "comm/mailbox_wire.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/wait.hpp"
#include "core/check.hpp"

namespace slip {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const FeatureShape kShape{.taps = 5, .max_tokens = 128, .hidden = 96};
const std::string kFrom = "rank 1 on node07";

Request asked() { return {.row = {.epoch = 2, .index = 17}, .tokens = 100, .slot = 1}; }
FeatureHeader header() {
  return {.row = {.epoch = 2, .index = 17}, .tokens = 100, .hidden = 96, .taps = 5, .slot = 1};
}

template <class F> std::string message_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}
std::string verdict(const FeatureHeader& h) {
  return message_of([&] { check_header(h, asked(), kShape, kFrom); });
}
std::string verdict(const Request& r, int64_t bytes = sizeof(Request)) {
  return message_of([&] { check_request(r, bytes, kShape, kFrom); });
}

TEST(Wire, TheRightHeaderIsAccepted) { EXPECT_EQ(verdict(header()), "accepted"); }

TEST(Wire, F6StateCountDiffersFromTokenCount) {
  FeatureHeader h = header();
  h.tokens = 36;
  EXPECT_THAT(verdict(h),
              AllOf(HasSubstr("100 vs 36"), HasSubstr("train row 17 of epoch 2"), HasSubstr(kFrom)));
}

TEST(Wire, EachLyingFieldIsNamed) {
  FeatureHeader h = header();
  h.taps = 4;
  EXPECT_THAT(verdict(h), HasSubstr("taps 5 vs 4"));
  h = header();
  h.hidden = 64;
  EXPECT_THAT(verdict(h), HasSubstr("hidden 96 vs 64"));
  h = header();
  h.dtype = 7;
  EXPECT_THAT(verdict(h), HasSubstr("element type 1 vs 7"));
  h = header();
  h.row.index = 18;
  EXPECT_THAT(verdict(h), AllOf(HasSubstr("train row 18"), HasSubstr("train row 17")));
  h = header();
  h.row.kind = kEvalRow;
  EXPECT_THAT(verdict(h), HasSubstr("eval row 17"));
}

TEST(Wire, Envelope) {
  const auto check = [](uint32_t magic, uint32_t version, int64_t bytes) {
    return message_of([&] { check_envelope(magic, version, bytes, 80, kFrom); });
  };
  EXPECT_EQ(check(kMailboxMagic, kMailboxVersion, 80), "accepted");
  EXPECT_THAT(check(kMailboxMagic, kMailboxVersion, 12), AllOf(HasSubstr("12 bytes"), HasSubstr("80")));
  EXPECT_THAT(check(1, kMailboxVersion, 80), HasSubstr("not a mailbox message"));
  EXPECT_THAT(check(kMailboxMagic, 9, 80), AllOf(HasSubstr("version 9"), HasSubstr("same build")));
}

TEST(Wire, Requests) {
  EXPECT_EQ(verdict(asked()), "accepted");
  EXPECT_EQ(verdict(Request{.type = kDone}), "accepted");
  EXPECT_EQ(verdict(Request{.type = kCall}), "accepted");
  EXPECT_THAT(verdict(asked(), 40), HasSubstr("40 bytes"));
  Request r = asked();
  r.tokens = 129;
  EXPECT_THAT(verdict(r), AllOf(HasSubstr("129"), HasSubstr("128"), HasSubstr("data.row_tokens")));
  r.tokens = 0;
  EXPECT_NE(verdict(r), "accepted");
  r = asked();
  r.slot = -1;
  EXPECT_NE(verdict(r), "accepted");
  r = asked();
  r.type = 5;
  EXPECT_NE(verdict(r), "accepted");
  r = asked();
  r.row.kind = 3;
  EXPECT_NE(verdict(r), "accepted");
}

TEST(Wire, RowsAreServedByEpochThenKindThenIndex) {
  const RowId a{kTrainRow, 0, 0, 9}, b{kEvalRow, 0, 0, 1}, c{kTrainRow, 0, 1, 0};
  EXPECT_LT(a, b);
  EXPECT_LT(b, c);
  EXPECT_EQ(std::min({c, b, a}), a);
  EXPECT_EQ(to_string(b), "eval row 1 of epoch 0");
}

TEST(Wait, GivesUpWithNameCauseAndLength) {
  Peers peers{.rank = 0, .hosts = {"a", "b"}};
  int watched = 0;
  peers.watch = [&] { ++watched; };
  Wait w(peers, deadline_in(0.05), "something rare", 1);
  const std::string text = message_of([&] {
    for (;;) w.pause();
  });
  EXPECT_THAT(text, AllOf(HasSubstr("rank 0 on a"), HasSubstr("rank 1 on b"), HasSubstr("something rare"),
                          HasSubstr("0.1 s")));
  EXPECT_GT(watched, 0);
  Wait living(peers, deadline_in(0.05), "something rare", 1);
  for (const auto start = Clock::now(); seconds_since(start) < 0.15; living.alive()) living.pause();
}

TEST(Wait, TheWatchEndsIt) {
  Peers peers{.rank = 0, .hosts = {"a", "b"}, .watch = [] { fail_peer("rank 1 on b is dead"); }};
  Wait w(peers, deadline_in(1e9), "something", 1);
  EXPECT_EQ(message_of([&] { w.pause(); }), "rank 1 on b is dead");
}

}  // namespace
}  // namespace slip
