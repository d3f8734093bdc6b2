// Silent, lying and confused peers. Rank 0 drafts, rank 1 is the target.
#include "comm/mailbox_case.hpp"

namespace slip::testing {
namespace {

const RowId kRow{kTrainRow, 0, 2, 17};

struct Fixture {
  MailboxCase c;
  Comm control = world().dup("control", soon());
  MpiTransport transport{world().dup("features", soon())};
  int rank = world().rank();
};

// What the drafter says when rank 1 answers its request with `change`d header.
std::string answer_to(const std::function<void(FeatureHeader&)>& change,
                      int64_t bytes = sizeof(FeatureHeader)) {
  Fixture f;
  std::string text;
  if (f.rank == 0) {
    TestDrafter d(f.c, f.control, f.transport, {kRow});
    d.request_ahead();
    text = message_of(kFailed, [&] { d.inbox.receive(kRow); });
    EXPECT_TRUE(d.memory.intact());
    for (const Bf16 b : d.memory.v) EXPECT_EQ(b.bits, kPoison);  // nothing half-written
  } else if (f.rank == 1) {
    const auto r = recv<Request>(f.control, 0, kRequestTag, soon(), "a request");
    FeatureHeader h{
        .row = r.row, .tokens = r.tokens, .hidden = f.c.shape.hidden, .taps = f.c.shape.taps, .slot = r.slot};
    change(h);
    send_bytes(f.control, 0, kHeaderTag, &h, bytes, soon(), "a header");
  }
  barrier(world(), soon(), "the end");
  return text;
}

void expect_answer(const std::function<void(FeatureHeader&)>& change, const std::string& part,
                   int64_t bytes = sizeof(FeatureHeader)) {
  const std::string text = answer_to(change, bytes);
  if (world().rank() != 0) return;
  EXPECT_TRUE(contains(text, part) && contains(text, "rank 1 on ")) << text;
}

TEST(MailboxFaults, LyingHeadersAreRejectedBeforeTheirBytes) {
  const int64_t tokens = row_tokens(MailboxCase{}, kRow);
  expect_answer([](FeatureHeader& h) { h.tokens = 3; }, std::to_string(tokens) + " vs 3");
  expect_answer([](FeatureHeader& h) { h.tokens = int64_t{1} << 40; }, "vs 1099511627776");
  expect_answer([](FeatureHeader& h) { h.hidden = 23; }, "24 vs 23");
  expect_answer([](FeatureHeader& h) { h.row.index = 3; }, "train row 3");
  expect_answer([](FeatureHeader& h) { h.slot = 1; }, "slot 1");
  expect_answer([](FeatureHeader& h) { h.slot = 1 << 30; }, "slot 1073741824");
  expect_answer([](FeatureHeader& h) { h.slot = -1; }, "slot -1");
  expect_answer([](FeatureHeader& h) { h.version = kMailboxVersion + 1; },
                "version " + std::to_string(kMailboxVersion + 1));
  expect_answer([](FeatureHeader& h) { h.magic = 0; }, "not a mailbox message");
  expect_answer([](FeatureHeader&) {}, "20 bytes", 20);
}

TEST(MailboxFaults, ASilentTargetIsNamedWithTheRow) {
  Fixture f;
  f.c.timeout_s = 1;
  if (f.rank == 0) {
    TestDrafter d(f.c, f.control, f.transport, {kRow});
    d.request_ahead();
    const auto start = Clock::now();
    const std::string text = message_of(kPeerFailed, [&] { d.inbox.receive(kRow); });
    EXPECT_NEAR(seconds_since(start), 1, 0.4);
    EXPECT_TRUE(contains(text, "rank 1 on " + session().peers().hosts[1])) << text;
    EXPECT_TRUE(contains(text, "features of train row 17 of epoch 2")) << text;
    EXPECT_TRUE(contains(text, "1.0 s")) << text;
    barrier(world(), soon(), "the target awakes");
    EXPECT_EQ(d.inbox.receive(kRow).tokens, row_tokens(f.c, kRow));  // it was only slow
    d.inbox.release(0);
    d.inbox.finish();
  } else {
    barrier(world(), soon(), "the target awakes");
    f.c.timeout_s = 60;
    if (f.rank == 1) run_target(f.c, f.control, f.transport);
  }
  barrier(world(), soon(), "the end");
}

TEST(MailboxFaults, ATargetGivesUpWhenNoDrafterSpeaks) {
  Fixture f;
  if (f.rank == 1) {
    Guarded ring(f.c.shape.slot_bytes());
    FeatureOutbox outbox(f.control, f.transport, f.c.shape, ring.v.data(), f.c.shape.taps, {0}, 0.5);
    const std::string text = message_of(kPeerFailed, [&] { outbox.next(); });
    EXPECT_TRUE(contains(text, "a request for features")) << text;
    EXPECT_TRUE(contains(text, "0.5 s")) << text;
  }
  barrier(world(), soon(), "the end");
}

TEST(MailboxFaults, ASenderWhoseFeaturesNobodyTakesNamesTheDrafter) {
  Fixture f;
  if (f.rank == 1) {
    f.c.shape.hidden = 1 << 16;  // too large for MPI to take it off our hands
    Guarded ring(f.c.shape.slot_bytes());
    {
      FeatureOutbox outbox(f.control, f.transport, f.c.shape, ring.v.data(), 1, {0}, 0.5);
      const auto r = outbox.next();
      ASSERT_TRUE(r.has_value());
      outbox.send_header(*r, r->tokens);
      outbox.send_tap(*r, 0, outbox.acquire_tap());
      const std::string text = message_of(kPeerFailed, [&] { outbox.acquire_tap(); });
      EXPECT_TRUE(contains(text, "rank 0 on ")) << text;
      EXPECT_TRUE(contains(text, "features that were sent")) << text;
    }
    barrier(world(), soon(), "taken after all");
    for (Wait w(f.control.peers(), soon(), "the tap to leave", 0); f.transport.in_flight() > 0; w.pause()) {
      f.transport.test({0});
    }
  } else {
    std::vector<Bf16> tap(static_cast<size_t>(37) << 16);
    if (f.rank == 0) {
      send(f.control, 1, kRequestTag, Request{.row = kRow, .tokens = 37, .slot = 0}, soon(), "a request");
      recv<FeatureHeader>(f.control, 1, kHeaderTag, soon(), "a header");
    }
    barrier(world(), soon(), "taken after all");
    if (f.rank == 0) {
      const auto bytes = static_cast<int64_t>(tap.size() * 2);
      wait(f.transport, f.transport.post_recv(1, tap.data(), bytes, {}), 1, soon(), "a tap");
    }
  }
  barrier(world(), soon(), "the end");
}

TEST(MailboxFaults, MisuseIsAnError) {
  Fixture f;
  if (f.rank == 0) {
    TestDrafter d(f.c, f.control, f.transport, {kRow});
    EXPECT_THROW(d.inbox.receive(kRow), Error);  // not requested
    EXPECT_THROW(d.inbox.release(0), Error);
    EXPECT_THROW(d.inbox.try_request(kRow, 0, 5), Error);  // not a target
    EXPECT_THROW(d.inbox.try_request(kRow, 1, 1 << 20), Error);
    d.take();
    EXPECT_THROW(d.inbox.release(0), Error);  // twice
    EXPECT_THROW(d.inbox.receive(kRow), Error);
    d.inbox.finish();
    EXPECT_THROW(d.inbox.finish(), Error);
  } else if (f.rank == 1) {
    Guarded ring(f.c.shape.slot_bytes());
    FeatureOutbox outbox(f.control, f.transport, f.c.shape, ring.v.data(), f.c.shape.taps, {0}, 60);
    const auto r = outbox.next();
    ASSERT_TRUE(r.has_value());
    Bf16* buffer = outbox.acquire_tap();
    EXPECT_THROW(outbox.send_tap(*r, 0, buffer), Error);  // no header yet
    outbox.send_header(*r, r->tokens);
    EXPECT_THROW(outbox.send_tap(*r, 1, buffer), Error);      // out of order
    EXPECT_THROW(outbox.send_tap(*r, 0, buffer + 1), Error);  // not a buffer
    for (int tap = 0; tap < f.c.shape.taps; ++tap) {
      if (tap > 0) buffer = outbox.acquire_tap();
      for (int64_t i = 0; i < r->tokens * f.c.shape.hidden; ++i) buffer[i] = element(r->row, tap, i);
      outbox.send_tap(*r, tap, buffer);
      EXPECT_THROW(outbox.send_tap(*r, tap, buffer), Error);  // twice
    }
    EXPECT_FALSE(outbox.next().has_value());
  }
  barrier(world(), soon(), "the end");
}

}  // namespace
}  // namespace slip::testing
