// e4m3 as bits: a sign, four bits of exponent (bias 7), three of mantissa. The largest number is 448, the
// smallest 2^-9; there is no infinity, and 0x7f and 0xff are NaN (arXiv 2209.05433).
#pragma once
#include <bit>
#include <cstdint>

#include "core/host_device.hpp"

namespace slip {

struct E4m3 {
  uint8_t bits;
  friend bool operator==(E4m3, E4m3) = default;  // bits, so NaN equals itself and -0 differs from 0
};

inline constexpr float kE4m3Largest = 448;

// To nearest, ties to even; what is larger than 448, infinity too, becomes 448. NaN becomes 0x7f.
SLIP_HD inline E4m3 to_e4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {0x7f};
  if (magnitude >= std::bit_cast<uint32_t>(kE4m3Largest)) return {static_cast<uint8_t>(sign | 0x7eu)};
  if (magnitude < 0x3c800000u) {  // below 2^-6, in steps of 2^-9: as the lowest bits of 2^14 + |x|
    const float shifted = std::bit_cast<float>(magnitude) + 16384.0f;
    return {static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) & 0xfu))};
  }
  const uint32_t rounded = (magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20;
  return {static_cast<uint8_t>(sign | (rounded - (120u << 3)))};  // exponents: bias 127 to bias 7
}

SLIP_HD inline float to_float(E4m3 x) {
  const uint32_t sign = (x.bits & 0x80u) << 24, magnitude = x.bits & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8) {
    const float value = static_cast<float>(magnitude) * 0x1p-9f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude + (120u << 3)) << 20));
}

}  // namespace slip
