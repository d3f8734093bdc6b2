#include <cuda_runtime.h>

#include "device/cuda.hpp"
#include "kernels/cache_attention_split.hpp"
#include "kernels/device/attention_rows.cuh"
#include "kernels/device/attention_tile.cuh"
#include "kernels/features.hpp"

namespace slip {
namespace {

constexpr int kMostWarps = 8;

// One block has up to 64 of the rows (query head of a group, new token) of a key/value head, 8 a warp, in the
// order of BlockRows with the new tokens as its slots. Keys and values from row 0 to the last that any of
// them sees, 32 at a time, go through shared memory as fp32, read once by the block.
template <class T, int kCols>
__global__ void __launch_bounds__(256)
    cache_fwd_kernel(const __grid_constant__ CacheAttentionFwd<T> a, bool wide) {
  extern __shared__ float4 pool[];
  const int tokens = int(a.q.rows), cached = int(a.k.rows) - tokens, kv = blockIdx.y;
  const int own = blockDim.x / 32 * kOwn, row0 = (gridDim.x - 1 - blockIdx.x) * own;  // long rows start first
  const int mine = row0 + warp_id() * kOwn;
  float* const q = reinterpret_cast<float*>(pool);
  float* const k = q + own * kPitch<kCols>;
  float* const v = k + kTile * kPitch<kCols>;
  float* const exchange = v + kTile * kPitch<kCols> + warp_id() * kTile * kOwn;
  const float* const q_of_warp = q + warp_id() * kOwn * kPitch<kCols>;
  AttentionShape s = a.shape;
  s.block = tokens;
  const BlockRows rows{s, 0, kv};
  load_rows<kCols, T>(q, own, s.head_dim, wide,
                      [&](int r) { return rows.has(row0 + r) ? rows.at(a.q, row0 + r) : nullptr; });
  int seen[kOwn];  // keys that this warp's rows see: at least one, also of rows that are not there
#pragma unroll
  for (int r = 0; r < kOwn; ++r) seen[r] = cached + (mine + r) % tokens + 1;
  const int first = row0 % tokens, end = cached + (first + own > tokens ? tokens : first + own);
  OnlineSoftmax<kCols> softmax;
  for (int k0 = 0; k0 < end; k0 += kTile) {
    __syncthreads();
    load_rows<kCols, T>(k, kTile, s.head_dim, wide,
                        [&](int r) { return k0 + r < end ? a.k.row(k0 + r) + kv * s.head_dim : nullptr; });
    load_rows<kCols, T>(v, kTile, s.head_dim, wide,
                        [&](int r) { return k0 + r < end ? a.v.row(k0 + r) + kv * s.head_dim : nullptr; });
    __syncthreads();
    float scores[kOwn];
    dot_rows<kCols>(q_of_warp, k, s.head_dim, scores);
#pragma unroll
    for (int r = 0; r < kOwn; ++r) scores[r] = k0 + lane_id() < seen[r] ? scores[r] * s.scale : -INFINITY;
    softmax.add(scores, v, exchange);
  }
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const float sum = warp_sum(softmax.sum[r]);
    if (rows.has(mine + r)) store_row<kCols>(rows.at(a.out, mine + r), softmax.out[r], s.head_dim, 1 / sum);
  }
}

}  // namespace

template <class T> void cache_attention_fwd_cuda(const CacheAttentionFwd<T>& a, CudaStream stream) {
  const AttentionShape& s = a.shape;
  require_heads(s, a.q.cols, a.k.cols);
  require(a.k.rows >= a.q.rows && a.v.rows == a.k.rows && a.v.cols == a.k.cols,
          "cache_attention: the cache must hold the new tokens");
  require(a.out.rows == a.q.rows && a.out.cols == a.q.cols, "cache_attention: out must have the shape of q");
  require(a.k.rows < (int64_t{1} << 31) / s.heads, "cache_attention: too many tokens");
  if (a.q.rows == 0) return;
  require(a.kv_new.empty() || (a.kv_new.rows == a.q.rows && a.kv_new.cols == 2 * a.k.cols &&
                               a.kv_end.rows == a.q.rows && a.kv_end.cols == a.kv_new.cols),
          "cache_attention: kv_new and kv_end must be keys and values of the new tokens");
  if constexpr (sizeof(T) == 2) {
    if (split_takes(a)) return cache_attention_split(a, stream);
  }
  if (!a.kv_new.empty()) cast_cuda<T, T>({a.kv_new, a.kv_end}, stream);
  const int needed = int((s.heads / s.kv_heads * a.q.rows + kOwn - 1) / kOwn);
  const int warps = needed < kMostWarps ? needed : kMostWarps;
  const dim3 grid(unsigned((needed + warps - 1) / warps), unsigned(s.kv_heads));
  const bool wide = all_fit<8>(a.q, a.k, a.v);
  with_columns(s.head_dim, [&]<int kCols>() {
    const int64_t floats = (warps * kOwn + 2 * kTile) * int64_t(kPitch<kCols>) + warps * kTile * kOwn;
    launch_tiles(cache_fwd_kernel<T, kCols>, a, wide, grid, warps, floats, stream);
  });
}

template void cache_attention_fwd_cuda(const CacheAttentionFwd<float>&, CudaStream);
template void cache_attention_fwd_cuda(const CacheAttentionFwd<Bf16>&, CudaStream);

}  // namespace slip
