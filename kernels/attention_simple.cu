#include "kernels/attention_simple.hpp"

#include <cuda_runtime.h>

#include "device/cuda.hpp"
#include "kernels/device/attention_rows.cuh"
#include "kernels/device/attention_tile.cuh"

namespace slip {
namespace {

// Shared memory of a forward block, in floats: the queries of its warps, a tile of keys, one of values,
// exchanges.
template <int kCols> struct ForwardTiles {
  float *q, *k, *v, *exchange;
  __device__ explicit ForwardTiles(float* pool) {
    const int own = blockDim.x / 32 * kOwn;
    q = pool;
    k = q + own * kPitch<kCols>;
    v = k + kTile * kPitch<kCols>;
    exchange = v + kTile * kPitch<kCols> + warp_id() * kTile * kOwn;
    q_of_warp = q + warp_id() * kOwn * kPitch<kCols>;
  }
  static int64_t floats(int warps) {
    return (warps * kOwn + 2 * kTile) * int64_t(kPitch<kCols>) + warps * kTile * kOwn;
  }
  const float* q_of_warp;
};

// One block has up to 64 of the rows (query head of a group, slot) that a block of slots and a key/value head
// make, 8 of them a warp. Its own keys come first, then the context keys from the first that slot 0 sees to
// the anchor, 32 at a time: fp32 in shared memory, read once by the block.
template <class T, int kCols>
__global__ void __launch_bounds__(256)
    block_fwd_kernel(const __grid_constant__ BlockAttentionFwd<T> a, bool wide) {
  extern __shared__ float4 pool[];
  const ForwardTiles<kCols> tiles(reinterpret_cast<float*>(pool));
  const AttentionShape& s = a.shape;
  const int dim = s.head_dim, block = gridDim.x - 1 - blockIdx.x, kv = blockIdx.y;  // long rows start first
  const BlockRows rows{s, block, kv};
  const int own = blockDim.x / 32 * kOwn, row0 = blockIdx.z * own, mine = row0 + warp_id() * kOwn;
  const int anchor = a.anchor[block], lo = a.lo[block];
  load_rows<kCols, T>(tiles.q, own, dim, wide,
                      [&](int r) { return rows.has(row0 + r) ? rows.at(a.q, row0 + r) : nullptr; });
  load_rows<kCols, T>(tiles.k, kTile, dim, wide,
                      [&](int r) { return r < s.block ? rows.slot_at(a.k_block, r) : nullptr; });
  load_rows<kCols, T>(tiles.v, kTile, dim, wide,
                      [&](int r) { return r < s.block ? rows.slot_at(a.v_block, r) : nullptr; });
  __syncthreads();
  int slot[kOwn], first[kOwn];  // of this warp's rows; rows beyond the last act as slot 0 and are not stored
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    slot[r] = rows.has(mine + r) ? (mine + r) % s.block : 0;
    first[r] = first_context(s, lo, anchor, slot[r]);
  }
  OnlineSoftmax<kCols> softmax;
  float scores[kOwn];
  dot_rows<kCols>(tiles.q_of_warp, tiles.k, dim, scores);
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    scores[r] = lane_id() < s.block && sees_slot(s, slot[r], lane_id()) ? scores[r] * s.scale : -INFINITY;
  }
  softmax.add(scores, tiles.v, tiles.exchange);
  for (int k0 = first_context(s, lo, anchor, 0); k0 < anchor; k0 += kTile) {
    __syncthreads();
    load_rows<kCols, T>(tiles.k, kTile, dim, wide, [&](int r) {
      return k0 + r < anchor ? a.k_context.row(k0 + r) + kv * dim : nullptr;
    });
    load_rows<kCols, T>(tiles.v, kTile, dim, wide, [&](int r) {
      return k0 + r < anchor ? a.v_context.row(k0 + r) + kv * dim : nullptr;
    });
    __syncthreads();
    dot_rows<kCols>(tiles.q_of_warp, tiles.k, dim, scores);
    const int key = k0 + lane_id();
#pragma unroll
    for (int r = 0; r < kOwn; ++r)
      scores[r] = key < anchor && key >= first[r] ? scores[r] * s.scale : -INFINITY;
    softmax.add(scores, tiles.v, tiles.exchange);
  }
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const float sum = warp_sum(softmax.sum[r]);
    if (!rows.has(mine + r)) continue;
    store_row<kCols>(rows.at(a.out, mine + r), softmax.out[r], dim, 1 / sum);
    if (lane_id() == 0) a.lse[rows.statistic(mine + r)] = softmax.top[r] + logf(sum);
  }
}

// One block has 64 tokens of a document for a query head, 8 a warp; keys from the document's first token to
// the last of the 64, 32 at a time. Tiles start at the document: what it is packed with changes nothing.
template <class T, int kCols>
__global__ void __launch_bounds__(256)
    causal_fwd_kernel(const __grid_constant__ CausalAttentionFwd<T> a, bool wide) {
  extern __shared__ float4 pool[];
  const ForwardTiles<kCols> tiles(reinterpret_cast<float*>(pool));
  const AttentionShape& s = a.shape;
  const int dim = s.head_dim, head = blockIdx.y, kv = head / (s.heads / s.kv_heads),
            own = blockDim.x / 32 * kOwn;
  int document = 0, tile = blockIdx.x;
  while (tile >= (a.cu[document + 1] - a.cu[document] + own - 1) / own) {
    tile -= (a.cu[document + 1] - a.cu[document] + own - 1) / own;
    ++document;
  }
  const int begin = a.cu[document], end = a.cu[document + 1], t0 = begin + tile * own,
            mine = t0 + warp_id() * kOwn;
  load_rows<kCols, T>(tiles.q, own, dim, wide,
                      [&](int r) { return t0 + r < end ? a.q.row(t0 + r) + head * dim : nullptr; });
  OnlineSoftmax<kCols> softmax;
  for (int k0 = begin; k0 < min(t0 + own, end); k0 += kTile) {
    __syncthreads();
    load_rows<kCols, T>(tiles.k, kTile, dim, wide,
                        [&](int r) { return k0 + r < end ? a.k.row(k0 + r) + kv * dim : nullptr; });
    load_rows<kCols, T>(tiles.v, kTile, dim, wide,
                        [&](int r) { return k0 + r < end ? a.v.row(k0 + r) + kv * dim : nullptr; });
    __syncthreads();
    if (k0 >= mine + kOwn) continue;  // beyond this warp's last token
    float scores[kOwn];
    dot_rows<kCols>(tiles.q_of_warp, tiles.k, dim, scores);
    const int key = k0 + lane_id();
#pragma unroll
    for (int r = 0; r < kOwn; ++r) scores[r] = key <= mine + r && key < end ? scores[r] * s.scale : -INFINITY;
    softmax.add(scores, tiles.v, tiles.exchange);
  }
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const float sum = warp_sum(softmax.sum[r]);
    if (mine + r < end) store_row<kCols>(a.out.row(mine + r) + head * dim, softmax.out[r], dim, 1 / sum);
  }
}

constexpr int kCausalWarps = 8;

}  // namespace

template <class T> void block_attention_fwd_simple(const BlockAttentionFwd<T>& a, CudaStream stream) {
  const AttentionShape& s = a.shape;
  require_block_shape(s, a.q.rows, a.q.cols, a.k_context.cols, a.k_block.cols);
  require(a.out.rows == a.q.rows && a.out.cols == a.q.cols,
          "block_attention_fwd: out must have the shape of q");
  require(a.k_context.rows == a.v_context.rows && a.k_block.rows == a.q.rows && a.v_block.rows == a.q.rows,
          "block_attention_fwd: keys and values do not fit");
  if (a.q.rows == 0) return;
  const bool wide = all_fit<8>(a.q, a.k_context, a.v_context, a.k_block, a.v_block);
  const RowTiles t = row_tiles(s, 8);
  const dim3 grid(unsigned(a.q.rows / s.block), unsigned(s.kv_heads), unsigned(t.tiles));
  with_columns(s.head_dim, [&]<int kCols>() {
    launch_tiles(block_fwd_kernel<T, kCols>, a, wide, grid, t.warps, ForwardTiles<kCols>::floats(t.warps),
                 stream);
  });
}

template <class T> void causal_attention_fwd_simple(const CausalAttentionFwd<T>& a, CudaStream stream) {
  const AttentionShape& s = a.shape;
  require_heads(s, a.q.cols, a.k.cols);
  require(a.v.cols == a.k.cols && a.out.rows == a.q.rows && a.out.cols == a.q.cols,
          "causal_attention_fwd: shapes do not fit");
  require(a.documents >= 0 && a.cu_host[a.documents] == a.q.rows,
          "causal_attention_fwd: cu does not end at the last token");
  int64_t tiles = 0;
  for (int d = 0; d < a.documents; ++d)
    tiles += (a.cu_host[d + 1] - a.cu_host[d] + kCausalWarps * kOwn - 1) / (kCausalWarps * kOwn);
  if (tiles == 0) return;
  const bool wide = all_fit<8>(a.q, a.k, a.v);
  with_columns(s.head_dim, [&]<int kCols>() {
    launch_tiles(causal_fwd_kernel<T, kCols>, a, wide, dim3(unsigned(tiles), unsigned(s.heads)), kCausalWarps,
                 ForwardTiles<kCols>::floats(kCausalWarps), stream);
  });
}

template void block_attention_fwd_simple(const BlockAttentionFwd<float>&, CudaStream);
template void block_attention_fwd_simple(const BlockAttentionFwd<Bf16>&, CudaStream);
template void causal_attention_fwd_simple(const CausalAttentionFwd<float>&, CudaStream);
template void causal_attention_fwd_simple(const CausalAttentionFwd<Bf16>&, CudaStream);

}  // namespace slip
