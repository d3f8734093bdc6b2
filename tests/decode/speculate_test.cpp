// The loop and its figures, with stand-ins for the models.
#include "decode/speculate.hpp"

#include <gmock/gmock.h>

#include <functional>
#include <numeric>
#include <string>

#include "core/random.hpp"
#include "decode/acceptance.hpp"

namespace slip::testing {
namespace {

using Ids = std::vector<int32_t>;

// The target says `next(position)` whatever stands before; `draft(position)` is what is proposed there.
struct Scripted {
  std::function<int32_t(int64_t)> next, draft;
  std::vector<std::string> calls;
  int64_t length = 0;  // accepted positions

  Choice prefill(std::span<const int32_t> prompt) {
    length = static_cast<int64_t>(prompt.size());
    return {next(length), 1};
  }
  void propose(int64_t start, std::span<int32_t> block) {
    EXPECT_EQ(start, length);  // the drafter's context ends where the block starts
    EXPECT_EQ(block[0], next(start));
    for (size_t j = 1; j < block.size(); ++j) block[j] = draft(start + static_cast<int64_t>(j));
    calls.push_back("propose " + std::to_string(start));
  }
  void verify(int64_t start, std::span<const int32_t> block, std::span<Choice> choices) {
    EXPECT_EQ(block.size(), choices.size());
    for (size_t j = 0; j < block.size(); ++j) choices[j] = {next(start + static_cast<int64_t>(j) + 1), 1};
    calls.push_back("verify " + std::to_string(start));
  }
  void commit(int64_t count) {
    length += count;
    calls.push_back("commit " + std::to_string(count));
  }
};

int32_t text(int64_t position) {
  return static_cast<int32_t>(random_u64(5, 0, static_cast<uint64_t>(position)) % 50);
}
Ids texts(int64_t from, int64_t count) {
  Ids out;
  for (int64_t p = from; p < from + count; ++p) out.push_back(text(p));
  return out;
}
Ids ids(const Response& r) {
  Ids out;
  for (const Choice& c : r.tokens) out.push_back(c.token);
  return out;
}
std::vector<int> advances(const Response& r) {
  std::vector<int> out;
  for (const Cycle& c : r.cycles) out.push_back(c.advance);
  return out;
}
const Ids kPrompt = {1, 2, 3, 4, 5};

// b = 4, a prompt of 5: d_1 == y_0, d_2 != y_1, so two tokens are gained and the next block starts at 7.
TEST(Speculate, TheTraceOfTheSpecification) {
  Scripted s{.next = text, .draft = [](int64_t p) { return p == 6 ? text(6) : 99; }};
  const Response r = speculate(s, kPrompt, {4, 4, {}});
  EXPECT_EQ(s.calls,
            (std::vector<std::string>{"propose 5", "verify 5", "commit 2", "propose 7", "verify 7"}));
  EXPECT_EQ(ids(r), texts(5, 4));
  EXPECT_EQ(advances(r), (std::vector<int>{2, 1}));
  EXPECT_EQ(r.cycles[1].start, 7);
  EXPECT_FALSE(r.stopped);
}

TEST(Speculate, E4AMatchAfterAMissDoesNotCount) {  // 1, 1, 0, 1: two accepted, three gained
  Scripted s{.next = text, .draft = [](int64_t p) { return p == 8 ? 99 : text(p); }};
  const Response r = speculate(s, kPrompt, {5, 4, {}});
  EXPECT_EQ(advances(r), (std::vector<int>{3}));
}

TEST(Speculate, AnOracleGainsABlockEveryTime) {
  for (int64_t block = 1; block <= 8; ++block) {
    Scripted s{.next = text, .draft = text};
    const Response r = speculate(s, kPrompt, {block, 1 + 6 * block, {}});
    EXPECT_EQ(ids(r), texts(5, 1 + 6 * block));
    EXPECT_EQ(advances(r), std::vector<int>(6, static_cast<int>(block)));
  }
}

TEST(Speculate, ADrafterThatIsAlwaysWrongGainsOne) {
  Scripted s{.next = text, .draft = [](int64_t) { return 99; }};
  const Response r = speculate(s, kPrompt, {8, 20, {}});
  EXPECT_EQ(ids(r), texts(5, 20));
  EXPECT_EQ(advances(r), std::vector<int>(19, 1));
}

// Whatever is proposed, the response is the target's, up to the stop or the limit.
TEST(Speculate, DraftsChangeNothingButTheNumberOfCalls) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const int64_t block = 1 + static_cast<int64_t>(random_u64(seed, 1, 0) % 8);
    const int64_t most = 1 + static_cast<int64_t>(random_u64(seed, 1, 1) % 40);
    const Ids stops = {static_cast<int32_t>(random_u64(seed, 1, 2) % 50),
                       static_cast<int32_t>(random_u64(seed, 1, 3) % 50)};
    Scripted s{.next = text, .draft = [&](int64_t p) {
                 return random_u64(seed, 2, static_cast<uint64_t>(p)) % 3 > 0 ? text(p) : 99;
               }};
    const Response r = speculate(s, kPrompt, {block, most, stops});
    const Ids all = texts(5, most);
    const auto stop = std::find_first_of(all.begin(), all.end(), stops.begin(), stops.end());
    EXPECT_EQ(ids(r), Ids(all.begin(), stop == all.end() ? stop : stop + 1));
    EXPECT_EQ(r.stopped, stop != all.end());
    const auto a = advances(r);
    EXPECT_GE(std::accumulate(a.begin(), a.end(), int64_t{1}), static_cast<int64_t>(r.tokens.size()));
  }
}

TEST(Speculate, AStopInsideABlockEndsTheResponseThere) {
  Scripted s{.next = [](int64_t p) { return static_cast<int32_t>(p); },
             .draft = [](int64_t p) { return static_cast<int32_t>(p); }};
  const Response r = speculate(s, kPrompt, {8, 100, {9}});
  EXPECT_EQ(ids(r), (Ids{5, 6, 7, 8, 9}));
  EXPECT_EQ(advances(r), (std::vector<int>{8}));  // in full
  EXPECT_TRUE(r.stopped);
  EXPECT_EQ(s.calls.back(), "verify 5");  // nothing is committed for a response that has ended
  s.calls.clear();
  const Response at_once = speculate(s, kPrompt, {8, 100, {5}});
  EXPECT_EQ(ids(at_once), (Ids{5}));
  EXPECT_TRUE(at_once.stopped && at_once.cycles.empty() && s.calls.empty());
}

Response response(int64_t tokens, const std::vector<int>& advance) {
  Response r;
  r.tokens.resize(static_cast<size_t>(tokens));
  for (const int a : advance) r.cycles.push_back({0, a});
  return r;
}

TEST(Acceptance, ByHand) {
  // 9 tokens after the first in 3 cycles (one beyond the stop); 3 in 3; none.
  const Response a = response(10, {4, 4, 2}), b = response(4, {1, 1, 1}), c = response(1, {});
  const Response* const all[] = {&a, &b, &c};
  const Acceptance x = acceptance(all, 4);
  EXPECT_EQ(x.responses, 3);
  EXPECT_EQ(x.tokens, 15);
  EXPECT_EQ(x.cycles, 6);
  EXPECT_EQ(x.target_calls(), 9);
  EXPECT_DOUBLE_EQ(x.pooled, 12.0 / 6);
  EXPECT_DOUBLE_EQ(x.mean, (9.0 / 3 + 3.0 / 3) / 2);
  EXPECT_DOUBLE_EQ(x.pooled_raw, 13.0 / 6);
  EXPECT_DOUBLE_EQ(x.mean_raw, (10.0 / 3 + 3.0 / 3) / 2);
  EXPECT_THAT(x.histogram, ::testing::ElementsAre(0, 3, 1, 0, 2));
  EXPECT_THAT(x.per_slot, ::testing::ElementsAre(1, 3.0 / 6, 2.0 / 6, 2.0 / 6));
}

TEST(Acceptance, NothingIsZero) {
  const Response c = response(1, {});
  const Response* const all[] = {&c};
  const Acceptance x = acceptance(all, 2);
  EXPECT_EQ(x.pooled, 0);
  EXPECT_EQ(x.mean_raw, 0);
  EXPECT_THAT(x.per_slot, ::testing::ElementsAre(0, 0));
}

}  // namespace
}  // namespace slip::testing
