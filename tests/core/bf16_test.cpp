#include "core/bf16.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "core/random.hpp"

namespace slip {
namespace {

TEST(Bf16, RoundsHalfToEven) {
  const std::pair<float, uint16_t> cases[] = {
      {1.0f, 0x3f80},        {3.14159274f, 0x4049}, {0.1f, 0x3dcd}, {-2.5f, 0xc020}, {65504.0f, 0x4780},
      {1.00390625f, 0x3f80}, {1.01171875f, 0x3f82}, {0.0f, 0x0000}, {-0.0f, 0x8000}};
  for (const auto& [x, bits] : cases) EXPECT_EQ(to_bf16(x).bits, bits) << x;
  EXPECT_EQ(round_bf16(1.00390625f), 1.0f);
  EXPECT_EQ(round_bf16(1.01171875f), 1.015625f);
  EXPECT_EQ(round_bf16(3.14159265f), 3.140625f);
  EXPECT_EQ(round_bf16(-0.1f), -0.10009765625f);
}

TEST(Bf16, EndsOfTheRange) {
  EXPECT_EQ(to_bf16(INFINITY).bits, 0x7f80);
  EXPECT_EQ(to_bf16(-INFINITY).bits, 0xff80);
  EXPECT_EQ(to_bf16(3.4e38f).bits, 0x7f80);      // beyond the largest by more than half a step
  EXPECT_EQ(to_bf16(0x1.fep127f).bits, 0x7f7f);  // the largest
  EXPECT_EQ(to_bf16(0x1p-133f).bits, 0x0001);    // the smallest
  EXPECT_EQ(to_bf16(0x1p-134f).bits, 0x0000);    // half of it: to even
  EXPECT_EQ(to_bf16(0x1.8p-133f).bits, 0x0002);
}

TEST(Bf16, EveryValueSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 x{static_cast<uint16_t>(bits)};
    const bool nan = (bits & 0x7fff) > 0x7f80;
    const Bf16 back = to_bf16(to_float(x));
    if (nan) {
      ASSERT_TRUE(std::isnan(to_float(back))) << bits;
    } else {
      ASSERT_EQ(back, x) << bits;
    }
  }
}

// Against the definition: the nearest of the two neighbours, the even one when both are as near. A NaN stays
// one.
TEST(Bf16, AMillionRandomWords) {
  int nans = 0;
  for (uint64_t i = 0; i < 1000000; ++i) {
    const auto word = static_cast<uint32_t>(random_u64(3, 0, i));
    const float x =
        std::bit_cast<float>(i % 4 == 0 ? word | 0x7f800000u : word);  // a quarter NaN or infinite
    const Bf16 got = to_bf16(x);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(to_float(got))) << i;
      ASSERT_EQ(std::signbit(to_float(got)), std::signbit(x)) << i;
      ++nans;
      continue;
    }
    const auto low = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);  // towards zero
    const auto distance = [&](uint16_t bits) {  // beyond the largest lies 2^128 for this purpose
      const double v =
          (bits & 0x7fff) == 0x7f80 && !std::isinf(x) ? 0x1p128 : std::abs(double{to_float(Bf16{bits})});
      return std::abs(std::abs(double{x}) - v);
    };
    uint16_t want = low;
    if (!std::isinf(x)) {
      const auto high = static_cast<uint16_t>(low + 1);
      if (distance(high) < distance(low) || (distance(high) == distance(low) && low % 2 == 1)) want = high;
    }
    ASSERT_EQ(got.bits, want) << i << ": " << x;
  }
  EXPECT_GT(nans, 100000);
}

TEST(Bf16, NothingElseIsTwoBytes) {
  static_assert(sizeof(Bf16) == 2 && alignof(Bf16) == 2);
  static_assert(__is_same(Acc<Bf16>, float) && __is_same(Acc<float>, float) &&
                __is_same(Acc<double>, double));
  EXPECT_EQ(from_float<Bf16>(0.1f).bits, 0x3dcd);
  EXPECT_EQ(from_float<float>(0.1f), 0.1f);
}

}  // namespace
}  // namespace slip
