#include "core/random.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace slip {
namespace {

void expect_philox(uint64_t key, uint64_t high, uint64_t low, std::array<uint32_t, 4> want) {
  const Philox4 r = philox(key, high, low);
  EXPECT_EQ((std::array<uint32_t, 4>{r.v[0], r.v[1], r.v[2], r.v[3]}), want);
}

// The known answers that the authors publish with their library (philox4x32-10).
TEST(Philox, KnownAnswers) {
  expect_philox(0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect_philox(~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect_philox(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88,
                {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Philox, EveryArgumentMatters) {
  std::set<uint64_t> seen;
  for (uint64_t i = 0; i < 100; ++i) {
    for (const uint64_t shift : {0, 32}) {
      seen.insert(random_u64((i + 1) << shift, 0, 0));
      seen.insert(random_u64(0, (i + 1) << shift, 0));
      seen.insert(random_u64(0, 0, (i + 1) << shift));
    }
  }
  EXPECT_EQ(seen.size(), 600u);
  EXPECT_EQ(random_u64(1, 2, 3), random_u64(1, 2, 3));
}

TEST(Philox, NormalHasMeanZeroAndVarianceOne) {
  constexpr int kCount = 100000;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = random_normal(42, 7, static_cast<uint64_t>(i));
    ASSERT_TRUE(std::isfinite(x)) << i;
    sum += x, squares += x * x, fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 4 / std::sqrt(kCount));  // four standard errors
  EXPECT_NEAR(squares / kCount, 1, 4 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(fourth / kCount, 3, 4 * std::sqrt(96.0 / kCount));
}

TEST(Fnv, KnownAnswers) {
  EXPECT_EQ(fnv1a64(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a64("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(fnv1a64("foobar"), 0x85944171f73967e8u);
}

}  // namespace
}  // namespace slip
