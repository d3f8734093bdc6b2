// bfloat16 as bits: the upper half of a float32. Rounding is to nearest, ties to even; a NaN stays a NaN.
#pragma once
#include <bit>
#include <cstdint>

#include "core/host_device.hpp"

namespace slip {

struct Bf16 {
  uint16_t bits;
  friend bool operator==(Bf16, Bf16) = default;  // bits, so NaN equals itself and -0 differs from 0
};

SLIP_HD inline Bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};  // quiet the NaN
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

SLIP_HD inline float to_float(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
SLIP_HD inline float to_float(float x) { return x; }
SLIP_HD inline double to_float(double x) { return x; }

// x rounded to bf16 and back: what a store in bf16 keeps.
SLIP_HD inline float round_bf16(float x) { return to_float(to_bf16(x)); }

template <class T> SLIP_HD inline T from_float(float x) {
  if constexpr (sizeof(T) == 2) {
    return to_bf16(x);
  } else {
    return static_cast<T>(x);
  }
}

// The type in which sums over T are kept: gradients of weights, norms, log-sum-exp.
template <class T> struct AccOf { using type = float; };
template <> struct AccOf<double> { using type = double; };
template <class T> using Acc = typename AccOf<T>::type;

}  // namespace slip
