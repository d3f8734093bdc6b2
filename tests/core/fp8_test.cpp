#include "core/fp8.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "core/bf16.hpp"

namespace slip {
namespace {

// Value of a code by the definition of the format.
double value(int bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (bits & 0x80) != 0 ? -size : size;
}
// The nearest number among all, the even one of two.
int nearest(double x) {
  int best = 0;
  for (int bits = 1; bits < 0x7f; ++bits) {
    const double now = std::abs(std::abs(x) - value(bits)), before = std::abs(std::abs(x) - value(best));
    if (now < before || (now == before && bits % 2 == 0)) best = bits;
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

TEST(E4m3, EveryCodeHasItsValue) {
  for (int bits = 0; bits < 256; ++bits) {
    const E4m3 code{static_cast<uint8_t>(bits)};
    if ((bits & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(to_float(code))) << bits;
      continue;
    }
    EXPECT_EQ(static_cast<double>(to_float(code)), value(bits)) << bits;
    EXPECT_EQ(to_e4m3(to_float(code)).bits, bits);
  }
  EXPECT_EQ(to_float(E4m3{0x7e}), 448.0f);
  EXPECT_EQ(to_float(E4m3{0x01}), 0x1p-9f);
}

TEST(E4m3, RoundsToNearest) {
  for (uint32_t upper = 0; upper < 0x10000u; ++upper) {  // every bf16, and values beside it
    for (const uint32_t lower : {0u, 1u, 0xffffu}) {
      const float x = std::bit_cast<float>(upper << 16 | lower);
      if (std::isnan(x)) {
        ASSERT_EQ(to_e4m3(x).bits, 0x7f);
      } else if (std::abs(x) < 500.0f && std::abs(x) > 1e-4f) {
        ASSERT_EQ(to_e4m3(x).bits, nearest(static_cast<double>(x))) << x;
      } else {
        ASSERT_EQ(to_e4m3(x).bits, (std::abs(x) > 1 ? 0x7e : 0) | (std::signbit(x) ? 0x80 : 0)) << x;
      }
    }
  }
  // Halfway between two numbers: the even one.
  EXPECT_EQ(to_float(to_e4m3(17.0f)), 16.0f);
  EXPECT_EQ(to_float(to_e4m3(19.0f)), 20.0f);
  EXPECT_EQ(to_float(to_e4m3(0x1p-10f)), 0.0f);
  EXPECT_EQ(to_float(to_e4m3(0x3p-10f)), 0x1p-8f);
}

}  // namespace
}  // namespace slip
