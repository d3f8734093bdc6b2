// The backward pass in three kernels, without atomics: delta = rowsum(dout * out); dQ, as the forward pass
// goes over keys; and dK, dV of the context and of the blocks, each key with one owner that goes over the
// queries in order. With P = exp(scale * QK^T - lse): dV = P^T dO, dS = P * (dO V^T - delta) * scale, dQ = dS
// K, dK = dS^T Q.
#include <cuda_runtime.h>

#include "device/cuda.hpp"
#include "kernels/attention_simple.hpp"
#include "kernels/device/attention_rows.cuh"
#include "kernels/device/attention_tile.cuh"

namespace slip {
namespace {

// A warp has a row and a head: dout and out are read once.
template <class T>
__global__ void __launch_bounds__(256) delta_kernel(const __grid_constant__ BlockAttentionBwd<T> a) {
  const int64_t item = blockIdx.x * int64_t(8) + warp_id(), row = item / a.shape.heads;
  if (row >= a.q.rows) return;
  const int64_t column = (item - row * a.shape.heads) * a.shape.head_dim;
  float sum = 0;
  for (int d = lane_id(); d < a.shape.head_dim; d += 32)
    sum += to_float(a.out.at(row, column + d)) * to_float(a.dout.at(row, column + d));
  sum = warp_sum(sum);
  if (lane_id() == 0) a.scratch[item] = sum;
}

// Shared memory in floats: two matrices of the rows that warps own, two streamed tiles, exchanges.
template <int kCols> struct BackwardTiles {
  float *own1, *own2, *tile1, *tile2, *exchange;
  const float *mine1, *mine2;  // of this warp
  __device__ explicit BackwardTiles(float* pool) {
    const int own = blockDim.x / 32 * kOwn;
    own1 = pool;
    own2 = own1 + own * kPitch<kCols>;
    tile1 = own2 + own * kPitch<kCols>;
    tile2 = tile1 + kTile * kPitch<kCols>;
    exchange = tile2 + kTile * kPitch<kCols> + warp_id() * kTile * kOwn;
    mine1 = own1 + warp_id() * kOwn * kPitch<kCols>;
    mine2 = own2 + warp_id() * kOwn * kPitch<kCols>;
  }
  static int64_t floats(int warps) {
    return 2 * (warps * kOwn + kTile) * int64_t(kPitch<kCols>) + warps * kTile * kOwn;
  }
};
// At most this many warps, so that the tiles of head_dim 256 fit the shared memory of sm_80.
template <int kCols> constexpr int kWarps = kCols == 8 ? 4 : 8;

// dQ. Rows and keys as in the forward pass; owned are q and dout, streamed are k and v.
template <class T, int kCols>
__global__ void __launch_bounds__(32 * kWarps<kCols>, kCols == 8 ? 1 : 2)
    dq_kernel(const __grid_constant__ BlockAttentionBwd<T> a, bool wide) {
  extern __shared__ float4 pool[];
  const BackwardTiles<kCols> tiles(reinterpret_cast<float*>(pool));
  const AttentionShape& s = a.shape;
  const int dim = s.head_dim, block = gridDim.x - 1 - blockIdx.x, kv = blockIdx.y;
  const BlockRows rows{s, block, kv};
  const int own = blockDim.x / 32 * kOwn, row0 = blockIdx.z * own, mine = row0 + warp_id() * kOwn;
  const int anchor = a.anchor[block], lo = a.lo[block];
  load_rows<kCols, T>(tiles.own1, own, dim, wide,
                      [&](int r) { return rows.has(row0 + r) ? rows.at(a.q, row0 + r) : nullptr; });
  load_rows<kCols, T>(tiles.own2, own, dim, wide,
                      [&](int r) { return rows.has(row0 + r) ? rows.at(a.dout, row0 + r) : nullptr; });
  int slot[kOwn];
  float lse[kOwn], delta[kOwn];
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const bool here = rows.has(mine + r);
    slot[r] = here ? (mine + r) % s.block : 0;
    lse[r] = here ? a.lse[rows.statistic(mine + r)] : 0;
    delta[r] = here ? a.scratch[rows.statistic(mine + r)] : 0;
  }
  float dq[kOwn][kCols] = {};
  // One tile of keys, its own first; sees(r): does row r see the key of this lane?
  const auto add_tile = [&](auto&& sees) {
    float p[kOwn], dp[kOwn];
    dot_rows<kCols>(tiles.mine1, tiles.tile1, dim, p);
    dot_rows<kCols>(tiles.mine2, tiles.tile2, dim, dp);
#pragma unroll
    for (int r = 0; r < kOwn; ++r) p[r] = sees(r) ? expf(p[r] * s.scale - lse[r]) * (dp[r] - delta[r]) : 0;
    add_weighted<kCols>(p, tiles.tile1, tiles.exchange, dq);
  };
  load_rows<kCols, T>(tiles.tile1, kTile, dim, wide,
                      [&](int r) { return r < s.block ? rows.slot_at(a.k_block, r) : nullptr; });
  load_rows<kCols, T>(tiles.tile2, kTile, dim, wide,
                      [&](int r) { return r < s.block ? rows.slot_at(a.v_block, r) : nullptr; });
  __syncthreads();
  add_tile(
      [&](int r) { return rows.has(mine + r) && lane_id() < s.block && sees_slot(s, slot[r], lane_id()); });
  for (int k0 = first_context(s, lo, anchor, 0); k0 < anchor; k0 += kTile) {
    __syncthreads();
    load_rows<kCols, T>(tiles.tile1, kTile, dim, wide, [&](int r) {
      return k0 + r < anchor ? a.k_context.row(k0 + r) + kv * dim : nullptr;
    });
    load_rows<kCols, T>(tiles.tile2, kTile, dim, wide, [&](int r) {
      return k0 + r < anchor ? a.v_context.row(k0 + r) + kv * dim : nullptr;
    });
    __syncthreads();
    const int key = k0 + lane_id();
    add_tile([&](int r) { return rows.has(mine + r) && sees_context(s, lo, anchor, slot[r], key); });
  }
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    if (rows.has(mine + r)) store_row<kCols>(rows.at(a.dq, mine + r), dq[r], dim, s.scale);
  }
}

// The queries of blocks [first, last) for one key/value head, 32 rows at a time, against the keys that warps
// own: dk and dv grow in registers, in the order of the rows. Owned are k and v, streamed are q and dout.
// sees(block, slot, r): does that query see key r of this warp?
template <int kCols, class T, class Sees>
__device__ void add_queries(const BlockAttentionBwd<T>& a, bool wide, const BackwardTiles<kCols>& tiles,
                            int first, int last, int kv, float (&dk)[kOwn][kCols], float (&dv)[kOwn][kCols],
                            Sees&& sees) {
  const AttentionShape& s = a.shape;
  const int dim = s.head_dim, per_block = s.heads / s.kv_heads * s.block, end = last * per_block;
  for (int row0 = first * per_block; row0 < end; row0 += kTile) {
    __syncthreads();
    const auto at = [&](const View2<const T>& m, int r) -> const T* {
      const int row = row0 + r;
      return row < end ? BlockRows{s, row / per_block, kv}.at(m, row % per_block) : nullptr;
    };
    load_rows<kCols, T>(tiles.tile1, kTile, dim, wide, [&](int r) { return at(a.q, r); });
    load_rows<kCols, T>(tiles.tile2, kTile, dim, wide, [&](int r) { return at(a.dout, r); });
    __syncthreads();
    const int row = row0 + lane_id(), block = row / per_block, in_block = row % per_block,
              slot = in_block % s.block;
    const bool here = row < end;
    const int64_t statistic = BlockRows{s, block, kv}.statistic(in_block);
    const float lse = here ? a.lse[statistic] : 0, delta = here ? a.scratch[statistic] : 0;
    float p[kOwn], dp[kOwn];
    dot_rows<kCols>(tiles.mine1, tiles.tile1, dim, p);
    dot_rows<kCols>(tiles.mine2, tiles.tile2, dim, dp);
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      p[r] = here && sees(block, slot, r) ? expf(p[r] * s.scale - lse) : 0;
      dp[r] = p[r] * (dp[r] - delta);
    }
    add_weighted<kCols>(p, tiles.tile2, tiles.exchange, dv);
    add_weighted<kCols>(dp, tiles.tile1, tiles.exchange, dk);
  }
}

// The first block in [first, last) for which the answer is yes: it is no and then yes as anchors ascend.
template <class F> __device__ int first_block(int first, int last, F&& yes) {
  while (first < last) {
    const int middle = (first + last) / 2;
    if (yes(middle)) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

// dK, dV of 8 context keys a warp and one key/value head, added to what is there. Anchors and first tokens
// ascend together, so the blocks that see any of the keys follow each other.
template <class T, int kCols>
__global__ void __launch_bounds__(32 * kWarps<kCols>, kCols == 8 ? 1 : 2)
    dkdv_context_kernel(const __grid_constant__ BlockAttentionBwd<T> a, bool wide) {
  extern __shared__ float4 pool[];
  const BackwardTiles<kCols> tiles(reinterpret_cast<float*>(pool));
  const AttentionShape& s = a.shape;
  const int dim = s.head_dim, kv = blockIdx.y, own = blockDim.x / 32 * kOwn, context = int(a.k_context.rows);
  const int k0 = blockIdx.x * own, k1 = min(k0 + own, context), mine = k0 + warp_id() * kOwn,
            blocks = int(a.q.rows / s.block);
  load_rows<kCols, T>(tiles.own1, own, dim, wide,
                      [&](int r) { return k0 + r < context ? a.k_context.row(k0 + r) + kv * dim : nullptr; });
  load_rows<kCols, T>(tiles.own2, own, dim, wide,
                      [&](int r) { return k0 + r < context ? a.v_context.row(k0 + r) + kv * dim : nullptr; });
  const int first = first_block(0, blocks, [&](int b) { return a.anchor[b] > k0; });
  const int last =
      first_block(first, blocks, [&](int b) { return first_context(s, a.lo[b], a.anchor[b], 0) >= k1; });
  float dk[kOwn][kCols] = {}, dv[kOwn][kCols] = {};
  add_queries<kCols, T>(a, wide, tiles, first, last, kv, dk, dv, [&](int b, int slot, int r) {
    return sees_context(s, a.lo[b], a.anchor[b], slot, mine + r);
  });
  if (first == last) return;
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    if (mine + r >= context) continue;
    float *to_k = a.dk_context.row(mine + r) + kv * dim, *to_v = a.dv_context.row(mine + r) + kv * dim;
#pragma unroll
    for (int c = 0; c < kCols; ++c) {
      const int d = lane_id() + 32 * c;
      if (d < dim) to_k[d] += dk[r][c] * s.scale, to_v[d] += dv[r][c];
    }
  }
}

// dK, dV of a block's own slots for one key/value head: only the block's queries see them.
template <class T, int kCols>
__global__ void __launch_bounds__(128)
    dkdv_block_kernel(const __grid_constant__ BlockAttentionBwd<T> a, bool wide) {
  extern __shared__ float4 pool[];
  const BackwardTiles<kCols> tiles(reinterpret_cast<float*>(pool));
  const AttentionShape& s = a.shape;
  const int dim = s.head_dim, block = blockIdx.x, kv = blockIdx.y, own = blockDim.x / 32 * kOwn,
            mine = warp_id() * kOwn;
  const BlockRows rows{s, block, kv};
  load_rows<kCols, T>(tiles.own1, own, dim, wide,
                      [&](int r) { return r < s.block ? rows.slot_at(a.k_block, r) : nullptr; });
  load_rows<kCols, T>(tiles.own2, own, dim, wide,
                      [&](int r) { return r < s.block ? rows.slot_at(a.v_block, r) : nullptr; });
  float dk[kOwn][kCols] = {}, dv[kOwn][kCols] = {};
  add_queries<kCols, T>(a, wide, tiles, block, block + 1, kv, dk, dv,
                        [&](int, int slot, int r) { return sees_slot(s, slot, mine + r); });
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    if (mine + r >= s.block) continue;
    store_row<kCols>(rows.slot_at(a.dk_block, mine + r), dk[r], dim, s.scale);
    store_row<kCols>(rows.slot_at(a.dv_block, mine + r), dv[r], dim, 1);
  }
}

}  // namespace

template <class T> void block_attention_bwd_simple(const BlockAttentionBwd<T>& a, CudaStream stream) {
  const AttentionShape& s = a.shape;
  require_block_shape(s, a.q.rows, a.q.cols, a.k_context.cols, a.k_block.cols);
  const int64_t rows = a.q.rows, context = a.k_context.rows, blocks = rows / s.block;
  require(a.out.rows == rows && a.dout.rows == rows && a.dq.rows == rows,
          "block_attention_bwd: out, dout and dq must have the rows of q");
  require(a.v_context.rows == context && a.dk_context.rows == context && a.dv_context.rows == context,
          "block_attention_bwd: the context's gradients must have its rows");
  require(
      a.k_block.rows == rows && a.v_block.rows == rows && a.dk_block.rows == rows && a.dv_block.rows == rows,
      "block_attention_bwd: block keys do not fit");
  require(rows * (s.heads / s.kv_heads) < (1ll << 31) && rows * s.heads / 8 < (1ll << 31),
          "block_attention_bwd: too many rows");
  if (rows == 0) return;
  delta_kernel<T><<<unsigned((rows * s.heads + 7) / 8), 256, 0, stream>>>(a);
  check(cudaGetLastError());
  const bool wide = all_fit<8>(a.q, a.dout, a.k_context, a.v_context, a.k_block, a.v_block);
  with_columns(s.head_dim, [&]<int kCols>() {
    const RowTiles t = row_tiles(s, kWarps<kCols>);
    launch_tiles(dq_kernel<T, kCols>, a, wide,
                 dim3(unsigned(blocks), unsigned(s.kv_heads), unsigned(t.tiles)), t.warps,
                 BackwardTiles<kCols>::floats(t.warps), stream);
    const int warps = (s.block + kOwn - 1) / kOwn;
    launch_tiles(dkdv_block_kernel<T, kCols>, a, wide, dim3(unsigned(blocks), unsigned(s.kv_heads)), warps,
                 BackwardTiles<kCols>::floats(warps), stream);
    if (context == 0) return;
    constexpr int kKeys = kWarps<kCols> * kOwn;
    launch_tiles(dkdv_context_kernel<T, kCols>, a, wide,
                 dim3(unsigned((context + kKeys - 1) / kKeys), unsigned(s.kv_heads)), kWarps<kCols>,
                 BackwardTiles<kCols>::floats(kWarps<kCols>), stream);
  });
}

template void block_attention_bwd_simple(const BlockAttentionBwd<float>&, CudaStream);
template void block_attention_bwd_simple(const BlockAttentionBwd<Bf16>&, CudaStream);

}  // namespace slip
