// Rows of float, bf16 or double read and written W elements at a time, 16 bytes an access; values are fp32
// (fp64 for double) in registers.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "core/bf16.hpp"
#include "core/check.hpp"
#include "device/view.hpp"

namespace slip {

template <class T> inline constexpr int kWide = 16 / sizeof(T);  // elements of one 16-byte access

// Two floats rounded to bf16, the first in the lower half (to nearest even; NaN becomes 0x7fff).
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ inline float low_bf16(uint32_t bits) { return __uint_as_float(bits << 16); }
__device__ inline float high_bf16(uint32_t bits) { return __uint_as_float(bits & 0xffff0000u); }

// x as a store in T keeps it.
template <class T> __device__ inline float rounded(float x) {
  if constexpr (sizeof(T) == 2) return low_bf16(pack_bf16(x, 0));
  return x;
}

template <int W, class A = float> struct Vec {
  A v[W];
  __device__ A& operator[](int i) { return v[i]; }
  __device__ A operator[](int i) const { return v[i]; }
};

template <int W> __device__ inline Vec<W> load(const float* p) {
  Vec<W> x;
  if constexpr (W % 4 == 0) {
#pragma unroll
    for (int i = 0; i < W; i += 4) {
      const float4 q = *reinterpret_cast<const float4*>(p + i);
      x[i] = q.x, x[i + 1] = q.y, x[i + 2] = q.z, x[i + 3] = q.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < W; ++i) x[i] = p[i];
  }
  return x;
}
template <int W> __device__ inline void store(float* p, const Vec<W>& x) {
  if constexpr (W % 4 == 0) {
#pragma unroll
    for (int i = 0; i < W; i += 4)
      *reinterpret_cast<float4*>(p + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
  } else {
#pragma unroll
    for (int i = 0; i < W; ++i) p[i] = x[i];
  }
}

template <int W> __device__ inline Vec<W> load(const Bf16* p) {
  Vec<W> x;
  if constexpr (W % 8 == 0) {
#pragma unroll
    for (int i = 0; i < W; i += 8) {
      const uint4 q = *reinterpret_cast<const uint4*>(p + i);
      x[i] = low_bf16(q.x), x[i + 1] = high_bf16(q.x), x[i + 2] = low_bf16(q.y), x[i + 3] = high_bf16(q.y);
      x[i + 4] = low_bf16(q.z), x[i + 5] = high_bf16(q.z), x[i + 6] = low_bf16(q.w),
            x[i + 7] = high_bf16(q.w);
    }
  } else if constexpr (W == 4) {
    const uint2 q = *reinterpret_cast<const uint2*>(p);
    x[0] = low_bf16(q.x), x[1] = high_bf16(q.x), x[2] = low_bf16(q.y), x[3] = high_bf16(q.y);
  } else {
#pragma unroll
    for (int i = 0; i < W; ++i) x[i] = to_float(p[i]);
  }
  return x;
}
template <int W> __device__ inline void store(Bf16* p, const Vec<W>& x) {
  if constexpr (W % 8 == 0) {
#pragma unroll
    for (int i = 0; i < W; i += 8) {
      *reinterpret_cast<uint4*>(p + i) =
          make_uint4(pack_bf16(x[i], x[i + 1]), pack_bf16(x[i + 2], x[i + 3]), pack_bf16(x[i + 4], x[i + 5]),
                     pack_bf16(x[i + 6], x[i + 7]));
    }
  } else if constexpr (W == 4) {
    *reinterpret_cast<uint2*>(p) = make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
  } else {
#pragma unroll
    for (int i = 0; i < W; ++i) p[i].bits = static_cast<uint16_t>(pack_bf16(x[i], 0));
  }
}

// Whether every row of the views can be read W elements at a time, in accesses of at most 16 bytes.
// An empty view fits; so does a plain array, seen as one row.
template <int W, class T> bool fits(const View2<T>& v) {
  const int64_t bytes = W * int64_t(sizeof(T)), access = bytes < 16 ? bytes : 16;
  const bool strided = v.rows > 1 && v.stride * int64_t(sizeof(T)) % access != 0;
  return v.empty() || (reinterpret_cast<uintptr_t>(v.data) % access == 0 && v.cols % W == 0 && !strided);
}
template <int W, class T> bool fits(const T* p) { return fits<W>(View2<const T>(p, 1, W)); }
template <int W, class... V> bool all_fit(const V&... views) { return (fits<W>(views) && ...); }

// One thread for every W columns of a (rows, cols) matrix: block and thread of a 1-D grid to row and column.
struct RowGrid {
  unsigned blocks, threads;
};
inline RowGrid row_grid(int64_t rows, int64_t packs) {
  const int64_t threads = packs >= 256 ? 256 : (packs + 31) / 32 * 32;
  const int64_t blocks = rows * ((packs + threads - 1) / threads);
  require(blocks < (1ll << 31), "a matrix has too many rows for one launch");
  return {unsigned(blocks), unsigned(threads)};
}
struct RowCol {
  int64_t row, col;
};
template <int W> __device__ inline RowCol row_col(int64_t cols) {
  const unsigned packs = unsigned(cols / W), per_row = (packs + blockDim.x - 1) / blockDim.x;
  return {blockIdx.x / per_row, int64_t((blockIdx.x % per_row) * blockDim.x + threadIdx.x) * W};
}

}  // namespace slip
