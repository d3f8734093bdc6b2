// Floats to e4m3, two and four at a time: as to_e4m3 (core/fp8.hpp) does it, by the instruction for it.
#pragma once
#include <cuda_fp8.h>

#include "core/fp8.hpp"
#include "kernels/device/vec.cuh"

namespace slip {

__device__ __forceinline__ uint32_t e4m3_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE, __NV_E4M3);
}
__device__ __forceinline__ uint32_t e4m3_quad(float a, float b, float c, float d) {
  return e4m3_pair(a, b) | e4m3_pair(c, d) << 16;
}
// `to` is aligned to kW bytes.
template <int kW> __device__ __forceinline__ void store_e4m3(E4m3* to, const Vec<kW>& x) {
  if constexpr (kW == 8) {
    *reinterpret_cast<uint2*>(to) = {e4m3_quad(x[0], x[1], x[2], x[3]), e4m3_quad(x[4], x[5], x[6], x[7])};
  } else if constexpr (kW == 4) {
    *reinterpret_cast<uint32_t*>(to) = e4m3_quad(x[0], x[1], x[2], x[3]);
  } else {
    for (int i = 0; i < kW; ++i) to[i].bits = uint8_t(e4m3_pair(x[i], 0));
  }
}

}  // namespace slip
