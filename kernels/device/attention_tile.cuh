// The two products that every simple attention kernel is made of. A warp owns 8 rows (of queries, or of
// keys); the block streams tiles of 32 rows of the other kind through shared memory. Everything is fp32.
#pragma once
#include "device/cuda.hpp"
#include "device/queue.hpp"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"

namespace slip {

inline constexpr int kOwn = 8;    // rows a warp owns
inline constexpr int kTile = 32;  // rows of a streamed tile: one a lane
// kCols columns a lane: head dims up to 32 * kCols. Rows in shared memory are 32 * kCols + 4 floats apart:
// rows read by 8 neighbouring lanes, 16 bytes each, touch every bank once.
template <int kCols> inline constexpr int kPitch = 32 * kCols + 4;

// s[r] = sum over d of own[r][d] * tile[lane][d]
template <int kCols>
__device__ inline void dot_rows(const float* own, const float* tile, int dim, float (&s)[kOwn]) {
  const float* mine = tile + lane_id() * kPitch<kCols>;
#pragma unroll
  for (int r = 0; r < kOwn; ++r) s[r] = 0;
#pragma unroll 1  // registers are short; the warps hide the latency
  for (int d = 0; d < dim; d += 4) {
    const float4 y = *reinterpret_cast<const float4*>(mine + d);
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const float4 x = *reinterpret_cast<const float4*>(own + r * kPitch<kCols> + d);
      s[r] += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
    }
  }
}

// sums[r][c] += sum over the tile's rows t of weight[r] of lane t * tile[t][lane + 32 c]. `exchange` is the
// warp's own [32][8] floats.
template <int kCols>
__device__ inline void add_weighted(const float (&weight)[kOwn], const float* tile, float* exchange,
                                    float (&sums)[kOwn][kCols]) {
  __syncwarp();  // the last use of exchange is over
  store<kOwn>(exchange + lane_id() * kOwn, *reinterpret_cast<const Vec<kOwn>*>(weight));
  __syncwarp();
#pragma unroll 4
  for (int t = 0; t < kTile; ++t) {
    const Vec<kOwn> w = load<kOwn>(exchange + t * kOwn);
#pragma unroll
    for (int c = 0; c < kCols; ++c) {
      const float x = tile[t * kPitch<kCols> + lane_id() + 32 * c];
#pragma unroll
      for (int r = 0; r < kOwn; ++r) sums[r][c] += w[r] * x;
    }
  }
}

// Rows of a matrix in global memory to shared memory, by the whole block; row(r) is where row r starts, or
// null: such a row, and what is beyond dim, becomes zero. `wide`: rows are aligned to 16 bytes.
template <int kCols, class T, class Row>
__device__ inline void load_rows(float* tile, int rows, int dim, bool wide, Row&& row) {
  constexpr int kUnits = 32 * kCols / 8;
  for (int i = threadIdx.x; i < rows * kUnits; i += blockDim.x) {
    const int r = i / kUnits, d = i % kUnits * 8;
    const T* from = row(r);
    Vec<8> x = {};
    if (from != nullptr && d < dim) {
      if (wide) {
        x = load<8>(from + d);
      } else {
#pragma unroll
        for (int k = 0; k < 8; ++k) x[k] = to_float(from[d + k]);
      }
    }
    store<8>(tile + r * kPitch<kCols> + d, x);
  }
}

// One row of a warp's sums to global memory: the columns of a lane are 32 apart.
template <int kCols, class T>
__device__ inline void store_row(T* to, const float (&sums)[kCols], int dim, float factor) {
#pragma unroll
  for (int c = 0; c < kCols; ++c) {
    const int d = lane_id() + 32 * c;
    if (d < dim) store<1>(to + d, Vec<1>{sums[c] * factor});
  }
}

// The rows of 8 queries under way: their sums, running maxima and this lane's share of the sums of exp.
template <int kCols> struct OnlineSoftmax {
  float out[kOwn][kCols] = {};
  float top[kOwn], sum[kOwn];

  __device__ OnlineSoftmax() {
#pragma unroll
    for (int r = 0; r < kOwn; ++r) top[r] = -INFINITY, sum[r] = 0;
  }
  // scores[r] of lane t against row t of `values`, -infinity where row r does not see it. The first tile
  // shows every row something: maxima are finite from then on.
  __device__ void add(float (&scores)[kOwn], const float* values, float* exchange) {
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const float next = fmaxf(top[r], warp_max(scores[r])), keep = expf(top[r] - next);
      scores[r] = expf(scores[r] - next);
      sum[r] = sum[r] * keep + scores[r];
      top[r] = next;
#pragma unroll
      for (int c = 0; c < kCols; ++c) out[r][c] *= keep;
    }
    add_weighted<kCols>(scores, values, exchange, out);
  }
};

// Calls f<kCols>() with the columns a lane needs for a head dim.
template <class F> void with_columns(int head_dim, F&& f) {
  if (head_dim <= 32) return f.template operator()<1>();
  if (head_dim <= 64) return f.template operator()<2>();
  if (head_dim <= 128) return f.template operator()<4>();
  f.template operator()<8>();
}

// Launches with as much shared memory as asked for.
template <class Arguments>
void launch_tiles(void (*kernel)(Arguments, bool), const Arguments& a, bool wide, dim3 grid, int warps,
                  int64_t shared_floats, CudaStream stream) {
  const int bytes = int(shared_floats * int64_t(sizeof(float)));
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<grid, 32 * warps, size_t(bytes), stream>>>(a, wide);
  check(cudaGetLastError());
}

}  // namespace slip
