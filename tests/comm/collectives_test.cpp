// Runs with any number of ranks.
#include "comm/collectives.hpp"

#include <cmath>
#include <random>
#include <thread>

#include "comm/session.hpp"

namespace slip::testing {
namespace {

int me() { return world().rank(); }
int ranks() { return world().size(); }

TEST(Session, KnowsEveryHost) {
  EXPECT_EQ(static_cast<int>(session().peers().hosts.size()), ranks());
  EXPECT_EQ(session().peers().hosts[0], session().peers().hosts[static_cast<size_t>(ranks() - 1)]);
  EXPECT_EQ(session().local_rank(), me());  // one machine
  EXPECT_EQ(session().local_size(), ranks());
}

TEST(Comm, SplitKeepsOrderAndNamesWorldRanks) {
  const Comm odd = world().split(me() % 2, "parity", soon());
  EXPECT_EQ(odd.rank(), me() / 2);
  EXPECT_EQ(odd.world_rank(odd.rank()), me());
  const Comm one = world().split(me() == ranks() - 1 ? 0 : -1, "last", soon());
  EXPECT_EQ(static_cast<bool>(one), me() == ranks() - 1);
  if (one) {
    EXPECT_EQ(one.size(), 1);
    double x = 3;
    allreduce_sum(one, {&x, 1}, soon(), "alone");
    EXPECT_EQ(x, 3);
  }
}

// Small integers are exact in any order, so every element can be compared; sizes around the switch from one
// way of summing to the other, and with pieces that do not divide by the ranks.
TEST(Allreduce, SumsExactly) {
  for (const int64_t n : {0, 1, 3, 4096, 8191, 8192, 8193, 100003, (4 << 20) / 4 + 5, (8 << 20) / 4}) {
    std::vector<float> f(static_cast<size_t>(n));
    std::vector<double> d(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      f[static_cast<size_t>(i)] = static_cast<float>((i % 1000) * (me() + 1));
      d[static_cast<size_t>(i)] = static_cast<double>(i * (me() + 1));
    }
    allreduce_sum(world(), std::span(f), soon(), "floats");
    allreduce_sum(world(), std::span(d), soon(), "doubles");
    const int64_t factor = ranks() * (ranks() + 1) / 2;
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(f[static_cast<size_t>(i)], static_cast<float>((i % 1000) * factor)) << n << " at " << i;
      ASSERT_EQ(d[static_cast<size_t>(i)], static_cast<double>(i * factor)) << n << " at " << i;
    }
  }
}

TEST(Allreduce, SameBitsOnAllRanksAndInEveryRun) {
  for (const size_t n : {size_t{100}, size_t{300000}}) {
    std::vector<float> first;
    for (int run = 0; run < 3; ++run) {
      std::mt19937 random(static_cast<unsigned>(me()));
      std::normal_distribution<float> normal;
      std::vector<float> x(n);
      for (float& v : x) v = normal(random);
      std::this_thread::sleep_for(
          std::chrono::milliseconds((me() * 7 + run * 5) % 11));  // another order of arrival
      allreduce_sum(world(), std::span(x), soon(), "noise");
      if (run == 0) first = x;
      ASSERT_EQ(x, first);
      std::vector<float> all(n * static_cast<size_t>(ranks()));
      allgather(world(), x.data(), static_cast<int64_t>(n * sizeof(float)), all.data(), soon(), "to compare");
      for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], x[i % n]);
    }
  }
}

TEST(Allreduce, NonFiniteComesThrough) {
  double x[2] = {me() == ranks() - 1 ? NAN : 1.0, 1.0};
  allreduce_sum(world(), x, soon(), "a NaN");
  EXPECT_TRUE(std::isnan(x[0]));
  EXPECT_EQ(x[1], ranks());
}

// A15: the gradient is a sum of numerators, divided once by the global sum of weights.
TEST(Allreduce, A15NormaliseOverAllRanks) {
  const double ce[4] = {1, 1, 1, 5};
  for (int split = 0; split < 3; ++split) {
    double sums[2] = {0, 0};  // loss (and gradient, as CE_i = c_i p, p = 1), weight
    for (int i = 0; i < 4; ++i) {
      const int owner = split == 0 ? (i < 3 ? 0 : 1) : split == 1 ? i % ranks() : 0;
      if (owner == me()) sums[0] += ce[i], sums[1] += 1;
    }
    allreduce_sum(world(), sums, soon(), "loss and weight");
    EXPECT_EQ(sums[0] / sums[1], 2.0);
  }
}

// A6: a rank without a label takes part with zeros.
TEST(Allreduce, A6OneRankHasNothing) {
  double sums[2] = {me() == 0 ? 6.0 : 0.0, me() == 0 ? 3.0 : 0.0};
  allreduce_sum(world(), sums, soon(), "loss and weight");
  EXPECT_EQ(sums[0] / sums[1], 2.0);
}

// G10: right and counted are summed, whatever the accumulation; nothing is averaged twice.
TEST(Allreduce, G10MetricsReducedOnce) {
  for (const int accumulation : {1, 4}) {
    double sums[2] = {0, 0};
    for (int k = 0; k < accumulation; ++k) sums[0] += 3.0 / accumulation, sums[1] += 4.0 / accumulation;
    allreduce_sum(world(), sums, soon(), "metrics");
    EXPECT_EQ(sums[0] / sums[1], 0.75);
  }
}

TEST(Flags, MaxAndOr) {
  int64_t x[3] = {me(), -me(), 7};
  allreduce_max(world(), x, soon(), "maxima");
  EXPECT_EQ(x[0], ranks() - 1);
  EXPECT_EQ(x[1], 0);
  EXPECT_EQ(x[2], 7);
  EXPECT_TRUE(any_rank(world(), me() == ranks() - 1, soon(), "a flag"));
  EXPECT_FALSE(any_rank(world(), false, soon(), "a flag"));
}

TEST(Verdict, AllRanksReturnThatOfTheLowestRank) {
  EXPECT_EQ(agree(world(), {}, soon(), "the check").code, 0);
  const bool bad = me() >= 1;
  const Verdict v =
      agree(world(), bad ? Verdict{3, "file " + std::to_string(me())} : Verdict{}, soon(), "the check");
  EXPECT_EQ(v.code, 3);
  EXPECT_EQ(v.message, "file 1");
}

TEST(Messages, BroadcastAndPairs) {
  std::vector<char> text(1000003, me() == 1 ? 'x' : ' ');
  broadcast(world(), 1, text.data(), static_cast<int64_t>(text.size()), soon(), "text");
  EXPECT_EQ(text, std::vector<char>(text.size(), 'x'));
  struct Small {
    int64_t a;
    float b;
  };
  if (me() == 0) {
    send(world(), 1, 5, Small{-3, 0.5f}, soon(), "a struct");
    EXPECT_EQ(recv<int64_t>(world(), 1, 6, soon(), "an answer"), -6);
  } else if (me() == 1) {
    const Small s = recv<Small>(world(), 0, 5, soon(), "a struct");
    EXPECT_EQ(s.b, 0.5f);
    send(world(), 0, 6, s.a * 2, soon(), "an answer");
  }
}

TEST(Timeouts, ASilentPeerIsNamed) {
  barrier(world(), soon(), "the test");
  if (me() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    EXPECT_EQ(recv<int>(world(), 0, 8, soon(), "after the silence"), 1);
  } else if (me() == 0) {
    const auto start = Clock::now();
    const std::string text =
        message_of(kPeerFailed, [] { recv<int>(world(), 1, 7, deadline_in(1), "the answer to everything"); });
    EXPECT_NEAR(seconds_since(start), 1, 0.4);
    EXPECT_TRUE(contains(text, "rank 1 on " + session().peers().hosts[1])) << text;
    EXPECT_TRUE(contains(text, "the answer to everything")) << text;
    EXPECT_TRUE(contains(text, "1.0 s")) << text;
    send(world(), 1, 8, 1, soon(), "after the silence");
  }
  barrier(world(), soon(), "the end");
}

TEST(Timeouts, ABarrierNamesWhoIsMissing) {
  const Comm own = world().dup("own", soon());  // its messages stay behind: nobody else uses it
  if (me() == 0) {
    const std::string text = message_of(kPeerFailed, [&] { barrier(own, deadline_in(0.3), "step 17"); });
    EXPECT_TRUE(contains(text, "rank 1 on ")) << text;
    EXPECT_TRUE(contains(text, "step 17")) << text;
  }
  barrier(world(), soon(), "the end");
  if (me() != 0) barrier(own, soon(), "step 17");
  if (me() == 0) barrier(own, soon(), "step 17 again");
  barrier(world(), soon(), "the end");
}

TEST(Watch, IsCalledWhileWaitingAndItsErrorGoesOut) {
  barrier(world(), soon(), "the test");
  if (me() == 0) {
    session().set_watch([] { fail_peer("rank 1 has died"); });
    const std::string text = message_of(kPeerFailed, [] { recv<int>(world(), 1, 9, soon(), "a message"); });
    EXPECT_EQ(text, "rank 1 has died");
    session().set_watch({});
  } else if (me() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    send(world(), 0, 9, 1, soon(), "a message");
  }
  barrier(world(), soon(), "the end");
}

}  // namespace
}  // namespace slip::testing
