// Mailbox under stress, at its early end, and G9. Cases that need more ranks than there are are skipped.
#include <cmath>
#include <random>

#include "comm/mailbox_case.hpp"

namespace slip::testing {
namespace {

struct Ranks {
  int targets, drafters;
};
void PrintTo(const Ranks& r, std::ostream* os) {
  *os << r.targets << "_targets_" << r.drafters << "_drafters";
}

class Mailbox : public ::testing::TestWithParam<Ranks> {
 protected:
  void SetUp() override {
    c.targets = GetParam().targets;
    c.drafters = GetParam().drafters;
    if (c.targets + c.drafters > world().size()) GTEST_SKIP() << "needs more ranks";
  }
  // Ranks that have no part only meet the others at the end.
  void run(const std::function<void(const Comm&, Transport&)>& drafter,
           const std::function<void(const OutboxStats&)>& target = {}) {
    {
      const Comm control = world().dup("control", soon());
      MpiTransport transport(world().dup("features", soon()), piece_bytes);
      if (c.takes_part() && c.drafts()) drafter(control, transport);
      if (c.takes_part() && !c.drafts()) {
        const OutboxStats stats = run_target(c, control, transport);
        if (target) target(stats);
      }
      EXPECT_EQ(transport.in_flight(), 0);
    }
    barrier(world(), soon(), "the end");
  }
  std::vector<RowId> rows_of(int drafter, int64_t count, int64_t epochs = 2) const {
    std::vector<RowId> rows;
    for (int64_t e = 0; e < epochs; ++e) {
      for (int64_t i = drafter; i < count; i += c.drafters) rows.push_back({kTrainRow, 0, e, i});
      if (drafter == 0) {
        for (int64_t i = 0; i < 5; ++i) rows.push_back({kEvalRow, 0, e, i});
      }
    }
    return rows;
  }
  MailboxCase c;
  int64_t piece_bytes = 1 << 9;
};

TEST_P(Mailbox, EveryByteWithRandomDelaysAndOneSlowReceiver) {
  std::mt19937 random(static_cast<unsigned>(world().rank() + 1));
  c.at_target = [&](const RowId&) {
    if (random() % 4 == 0) sleep_ms(random() % 4);
  };
  c.at_drafter = [&](const RowId&) { sleep_ms(world().rank() == 0 ? 2 + random() % 8 : random() % 3); };
  for (const int slots : {1, 2, 5}) {
    for (const int ring_rows : {1, 3}) {
      c.slots = slots;
      c.ring_rows = ring_rows;
      run([&](const Comm& control, Transport& transport) {
        TestDrafter d(c, control, transport, rows_of(world().rank(), 40));
        while (d.received < d.rows.size()) {
          d.take();
          EXPECT_LE(transport.in_flight(), c.slots * c.shape.taps);
        }
        d.inbox.finish();
        EXPECT_EQ(d.inbox.free_slots(), c.slots);
        EXPECT_TRUE(d.memory.intact());
      });
    }
  }
}

// Taps that MPI does not copy at the post: they leave the ring and enter the slots while both sides go on.
TEST_P(Mailbox, LargeTapsArriveWhole) {
  std::mt19937 random(static_cast<unsigned>(world().rank() + 1));
  c.shape = {.taps = 3, .max_tokens = 37, .hidden = 2048};
  piece_bytes = 1 << 16;
  c.at_drafter = [&](const RowId&) { sleep_ms(random() % 5); };
  for (const int ring_rows : {1, 2}) {
    c.ring_rows = ring_rows;
    run([&](const Comm& control, Transport& transport) {
      TestDrafter d(c, control, transport, rows_of(world().rank(), 16));
      while (d.received < d.rows.size()) d.take();
      d.inbox.finish();
      EXPECT_TRUE(d.memory.intact());
    });
  }
}

TEST_P(Mailbox, RequestedInAnyOrderReceivedInAnother) {
  c.slots = 6;
  std::mt19937 random(5);
  run([&](const Comm& control, Transport& transport) {
    std::vector<RowId> rows = rows_of(world().rank(), 48, 1);
    std::shuffle(rows.begin(), rows.end(), random);
    TestDrafter d(c, control, transport, rows);
    while (d.received < d.rows.size()) {
      d.request_ahead();
      const auto first = d.rows.begin() + static_cast<long>(d.received);
      std::shuffle(first, d.rows.begin() + static_cast<long>(d.requested), random);
      d.take();
    }
    d.inbox.finish();
    EXPECT_TRUE(d.memory.intact());
  });
}

TEST_P(Mailbox, EarlyFinishDropsWhatIsUnderWay) {
  c.slots = 4;
  c.at_target = [](const RowId&) { sleep_ms(3); };
  int64_t taken = 0;
  run(
      [&](const Comm& control, Transport& transport) {
        TestDrafter d(c, control, transport, rows_of(world().rank(), 100, 1));
        const size_t stop_at = static_cast<size_t>(world().rank()) * 3;  // one drafter takes nothing at all
        d.request_ahead();
        while (d.received < stop_at) d.take();
        taken = static_cast<int64_t>(d.requested);
        EXPECT_EQ(d.inbox.free_slots(), 0);
        d.inbox.finish();
        EXPECT_EQ(d.inbox.free_slots(), c.slots);
        EXPECT_TRUE(d.memory.intact());
        EXPECT_THROW(d.inbox.try_request(d.rows[0], c.target_of(0), 1), Error);
      },
      [&](const OutboxStats& s) { taken = -s.rows; });
  // Every row that was requested was sent, no other.
  double sum = static_cast<double>(taken);
  allreduce_sum(world(), {&sum, 1}, soon(), "rows");
  EXPECT_EQ(sum, 0);
}

TEST_P(Mailbox, StopFlagAndTimesTravelInTheHeader) {
  const Comm control = world().dup("control", soon());
  MpiTransport transport(world().dup("features", soon()));
  if (c.takes_part() && c.drafts()) {
    TestDrafter d(c, control, transport, rows_of(world().rank(), 20, 1));
    FeatureSlot s;
    while (d.received < d.rows.size()) {
      s = d.take();
      EXPECT_EQ(s.flags, kStopAsked);
    }
    EXPECT_GT(s.target_busy_s + s.target_wait_s, 0);
    d.inbox.finish();
  } else if (c.takes_part()) {
    Guarded ring(c.shape.slot_bytes());
    std::vector<int> drafters;
    for (int d = 0; d < c.drafters; ++d) drafters.push_back(d);
    FeatureOutbox outbox(control, transport, c.shape, ring.v.data(), c.shape.taps, drafters, c.timeout_s);
    outbox.ask_stop();
    while (const auto r = outbox.next()) {
      outbox.send_header(*r, r->tokens);
      for (int tap = 0; tap < c.shape.taps; ++tap) {
        Bf16* buffer = outbox.acquire_tap();
        for (int64_t i = 0; i < r->tokens * c.shape.hidden; ++i) buffer[i] = element(r->row, tap, i);
        outbox.send_tap(*r, tap, buffer);
      }
    }
  }
  barrier(world(), soon(), "the end");
}

INSTANTIATE_TEST_SUITE_P(Ranks, Mailbox,
                         ::testing::Values(Ranks{1, 1}, Ranks{2, 2}, Ranks{3, 1}, Ranks{1, 3}),
                         ::testing::PrintToStringParamName());

// G9: 9 rows, steps of 4, 4 and 1; one drafter sleeps; nobody runs out of time, memory is the slots and the
// ring.
// A target leaves its rows when all its drafters have called, not before, and serves on afterwards.
TEST_P(Mailbox, ACallReachesATargetWhenAllDraftersHaveCalled) {
  run([&](const Comm& control, Transport& transport) {
    TestDrafter d(c, control, transport, rows_of(control.rank(), 12));
    const auto call = [&] {
      sleep_ms(control.rank() == 0 ? 0 : 30);
      d.inbox.call();
      int64_t served = 0;
      for (int t = 0; t < c.targets; ++t)
        served += recv<int64_t>(control, c.drafters + t, 5, soon(), "the answer of a target");
      return served;
    };
    EXPECT_EQ(call(), 0);
    EXPECT_EQ(call(), 0);
    while (d.received < d.rows.size()) d.take();
    EXPECT_EQ(call(), 2 * 12 + 2 * 5);  // all rows of all drafters
    d.inbox.finish();
  });
}

TEST(MailboxG9, AProducerBlocksWhileADrafterSleeps) {
  MailboxCase c{.targets = 1, .drafters = 2, .slots = 2, .ring_rows = 2};
  if (world().size() < 3) GTEST_SKIP() << "needs 3 ranks";
  const Comm control = world().dup("control", soon());
  MpiTransport transport(world().dup("features", soon()));
  const Comm trainers = world().split(world().rank() < 2 ? 0 : -1, "drafters", soon());
  if (c.takes_part() && c.drafts()) {
    std::vector<RowId> rows;
    const int64_t all = 9, step = 4;
    for (int64_t i = 0; i < all; ++i) {
      if (i % step % 2 == world().rank()) rows.push_back({kTrainRow, 0, 0, i});
    }
    if (world().rank() == 1) sleep_ms(1500);
    TestDrafter d(c, control, transport, rows);
    std::vector<double> losses;
    for (int64_t first = 0; first < all; first += step) {
      double sums[2] = {0, 0};
      for (int64_t i = first; i < std::min(all, first + step); ++i) {
        if (i % step % 2 != world().rank()) continue;
        d.take();
        sums[0] += static_cast<double>(i), sums[1] += 1;
      }
      allreduce_sum(trainers, sums, soon(), "gradients");
      losses.push_back(sums[0] / sums[1]);
    }
    EXPECT_EQ(losses, (std::vector<double>{1.5, 5.5, 8}));
    d.inbox.finish();
  } else if (c.takes_part()) {
    const OutboxStats s = run_target(c, control, transport);
    EXPECT_EQ(s.rows, 9);
    EXPECT_LE(s.most_pending, 4);
    EXPECT_GT(s.wait_request_s + s.wait_ring_s, 1);
  }
  barrier(world(), soon(), "the end");
}

}  // namespace
}  // namespace slip::testing
