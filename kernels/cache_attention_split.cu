// Few new tokens over a long cache, bf16 on tensor cores: the cache is cut into pieces so that one token of
// one prompt keeps a whole GPU busy, and what the pieces say is put together by a second kernel. How many
// pieces follows from the shapes alone, so the bits do not depend on the device.
#include <cuda_runtime.h>

#include "device/cuda.hpp"
#include "kernels/cache_attention_split.hpp"
#include "kernels/device/async_copy.cuh"
#include "kernels/device/attention_rows.cuh"
#include "kernels/device/dependent.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/partials.hpp"

namespace slip {
namespace {

using namespace hopper;

constexpr int kRows = kCacheRows, kKeys = 64, kThreads = 128;  // 16 rows a warp
constexpr int kMostPieces = 32;                                // a lane of the joining warp has one
constexpr int kAtOnce = 8;  // loads of the joining warp that are on their way
constexpr float kLn2 = 0.6931471805599453f;

// Rows of shared memory begin 16 bytes apart modulo 128: ldmatrix meets no bank twice.
template <int D> constexpr int kRowBytes = (D + 8) * 2;
template <int D> constexpr int kTileBytes = kKeys* kRowBytes<D>;
template <int D> constexpr int kStages = D > 128 ? 1 : 2;
template <int D> constexpr int kSharedBytes = kTileBytes<D>*(1 + 2 * kStages<D>);

struct Pieces {
  int rows;      // (query head of a group, new token) of a key/value head
  int tiles;     // of kRows rows
  int count;     // pieces of the cache
  int64_t keys;  // of a piece, a multiple of kKeys
};
Pieces pieces_of(const AttentionShape& s, int64_t tokens, int64_t total) {
  Pieces p{.rows = int(s.heads / s.kv_heads * tokens)};
  p.tiles = (p.rows + kRows - 1) / kRows;
  const int64_t key_tiles = (total + kKeys - 1) / kKeys;
  int64_t count = kCacheBlocks / (int64_t(p.tiles) * s.kv_heads);
  count = count < 1 ? 1 : count > kMostPieces ? kMostPieces : count;
  const int64_t per_piece = (key_tiles + count - 1) / count;
  p.keys = per_piece * kKeys;
  p.count = int((key_tiles + per_piece - 1) / per_piece);
  return p;
}

// 64 rows of D elements; row(r) is null where there is none, and reads as zeros.
template <int D, class Row> __device__ void load_tile(uint32_t to, const void* somewhere, Row&& row) {
  constexpr int kChunks = D / 8;
  for (int i = threadIdx.x; i < kKeys * kChunks; i += kThreads) {
    const int r = i / kChunks, c = i % kChunks;
    const Bf16* const from = row(r);
    copy_16(to + r * kRowBytes<D> + c * 16, from == nullptr ? somewhere : from + c * 8, from != nullptr);
  }
}

// The keys are rows of k, then rows of k_block. A cache: token t of the queries sees up to the row of its
// own, the first of them `first_own`; k_block is empty, or they are there and go to kv_end too. A block: k is
// its context, of which it sees from its window's begin to the anchor, and k_block its own.
struct SplitArgs {
  AttentionShape shape;  // block: rows of q
  View2<const Bf16> q, k, v, k_block, v_block;
  const int *anchor = nullptr, *lo = nullptr;  // null: a cache
  View2<const Bf16> kv_new;                    // k_block and v_block side by side
  View2<Bf16> kv_end;
  View2<Bf16> out;
  float* lse = nullptr;
  float* scratch;
  int first_own, total;
  Pieces p;
};

// Block: 64 rows of one key/value head (x), the head (y), one piece of the cache (z).
template <int D>
__global__ void __launch_bounds__(kThreads) split_kernel(const __grid_constant__ SplitArgs args) {
  extern __shared__ char pool[];
  allow_next();
  const SplitArgs& a = args;
  const AttentionShape& s = a.shape;
  const int kv = blockIdx.y, row0 = blockIdx.x * kRows, in_k = int(a.k.rows);
  const int begin = int(blockIdx.z * args.p.keys);
  if (const int r = begin + int(threadIdx.x) / 2; r < in_k) {  // the first tile: a thread has half a row
    const View2<const Bf16>& m = threadIdx.x % 2 == 0 ? a.k : a.v;
#pragma unroll
    for (int c = 0; c < D; c += 64) prefetch_l2(m.row(r) + kv * D + c);
  }
  await_previous();
  const int end = int(begin + args.p.keys < a.total ? begin + args.p.keys : a.total);
  const BlockRows rows{s, 0, kv};
  const auto key_row = [&](const View2<const Bf16>& m, const View2<const Bf16>& own, int k) -> const Bf16* {
    if (k >= end) return nullptr;
    return (k < in_k ? m.row(k) : own.row(k - in_k)) + kv * D;
  };
  const uint32_t q_tile = shared_address(pool), kv_tiles = q_tile + kTileBytes<D>;
  const auto load_keys = [&](int stage, int k0) {
    const uint32_t at = kv_tiles + stage * 2 * kTileBytes<D>;
    load_tile<D>(at, a.q.data, [&](int r) { return key_row(a.k, a.k_block, k0 + r); });
    load_tile<D>(at + kTileBytes<D>, a.q.data, [&](int r) { return key_row(a.v, a.v_block, k0 + r); });
    commit();
  };
  load_tile<D>(q_tile, a.q.data,
               [&](int r) { return rows.has(row0 + r) ? rows.at(a.q, row0 + r) : nullptr; });
  load_keys(0, begin);

  if (!a.kv_new.empty()) {  // all blocks of a head share the copying
    constexpr int kChunks = D / 8;
    const int blocks = gridDim.x * gridDim.z, block = blockIdx.z * gridDim.x + blockIdx.x;
    for (int i = block * kThreads + int(threadIdx.x); i < s.block * 2 * kChunks; i += blocks * kThreads) {
      const int r = i / (2 * kChunks), value = i / kChunks % 2;
      const int64_t column = int64_t(value * s.kv_heads + kv) * D + i % kChunks * 8;
      *reinterpret_cast<uint4*>(a.kv_end.row(r) + column) =
          *reinterpret_cast<const uint4*>(a.kv_new.row(r) + column);
    }
  }

  const int lane = lane_id(), mine = row0 + warp_id() * 16 + lane / 4;  // and mine + 8
  // These two rows see the keys first .. seen - 1 but for those from `anchor` to the block's own.
  const int anchor = a.anchor == nullptr ? a.first_own : a.anchor[0];
  int first[2], seen[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int slot = (mine + 8 * h) % s.block;
    first[h] = a.anchor == nullptr ? 0 : first_context(s, a.lo[0], anchor, slot);
    seen[h] = !rows.has(mine + 8 * h) ? 0 : s.causal ? a.first_own + slot + 1 : a.total;
  }
  const float scale = s.scale * 1.4426950408889634f;
  float out[D / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  const uint32_t q_at = q_tile + (warp_id() * 16 + lane % 16) * kRowBytes<D> + lane / 16 * 16;
  int stage = 0;
  for (int k0 = begin; k0 < end; k0 += kKeys) {
    if (kStages<D> == 2 && k0 + kKeys < end) {
      load_keys(stage ^ 1, k0 + kKeys);
      wait_for<1>();
    } else {
      wait_for<0>();
    }
    __syncthreads();
    const uint32_t k_tile = kv_tiles + stage * 2 * kTileBytes<D>, v_tile = k_tile + kTileBytes<D>;
    float score[kKeys / 8][4] = {};
    const uint32_t k_at = k_tile + (lane / 16 * 8 + lane % 8) * kRowBytes<D> + lane / 8 % 2 * 16;
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      uint32_t q[4];
      ldmatrix(q, q_at + d * 32);
#pragma unroll
      for (int j = 0; j < kKeys / 16; ++j) {
        uint32_t k[4];
        ldmatrix(k, k_at + j * 16 * kRowBytes<D> + d * 32);
        mma_bf16(score[2 * j], q, k[0], k[1]);
        mma_bf16(score[2 * j + 1], q, k[2], k[3]);
      }
    }
    float peak[2] = {most[0], most[1]};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = k0 + n * 8 + lane % 4 * 2 + i % 2;
        const bool sees = key < seen[i / 2] && key >= first[i / 2] && (key < anchor || key >= a.first_own);
        score[n][i] = sees ? score[n][i] * scale : -INFINITY;
        peak[i / 2] = fmaxf(peak[i / 2], score[n][i]);
      }
    }
    float shift[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      peak[h] = fmaxf(peak[h], __shfl_xor_sync(~0u, peak[h], 1));
      peak[h] = fmaxf(peak[h], __shfl_xor_sync(~0u, peak[h], 2));
      shift[h] = peak[h] == -INFINITY ? 0 : peak[h];  // nothing seen so far: no key has weight
      const float factor = exp2f(most[h] - shift[h]);
      most[h] = peak[h];
      sum[h] *= factor;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) out[n][2 * h] *= factor, out[n][2 * h + 1] *= factor;
    }
    uint32_t weight[kKeys / 16][4];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      float w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        w[i] = exp2f(score[n][i] - shift[i / 2]);
        sum[i / 2] += w[i];
      }
      weight[n / 2][n % 2 * 2] = slip::pack_bf16(w[0], w[1]);
      weight[n / 2][n % 2 * 2 + 1] = slip::pack_bf16(w[2], w[3]);
    }
    const uint32_t v_at = v_tile + (lane / 8 % 2 * 8 + lane % 8) * kRowBytes<D> + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
      for (int j = 0; j < D / 16; ++j) {
        uint32_t v[4];
        ldmatrix_trans(v, v_at + k * 16 * kRowBytes<D> + j * 32);
        mma_bf16(out[2 * j], weight[k], v[0], v[1]);
        mma_bf16(out[2 * j + 1], weight[k], v[2], v[3]);
      }
    }
    __syncthreads();  // before the next tile overwrites this one
    if (kStages<D> == 2)
      stage ^= 1;
    else if (k0 + kKeys < end)
      load_keys(0, k0 + kKeys);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
    sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
    const int r = mine + 8 * h;
    if (!rows.has(r)) continue;
    if (args.p.count == 1) {
      Bf16* const to = rows.at(a.out, r);
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        *reinterpret_cast<uint32_t*>(to + n * 8 + lane % 4 * 2) =
            slip::pack_bf16(out[n][2 * h] / sum[h], out[n][2 * h + 1] / sum[h]);
      if (a.lse != nullptr && lane % 4 == 0) a.lse[rows.statistic(r)] = most[h] * kLn2 + logf(sum[h]);
      continue;
    }
    const int64_t at = (int64_t(blockIdx.z) * s.kv_heads + kv) * args.p.rows + r;
    float* const to = a.scratch + at * D;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      *reinterpret_cast<float2*>(to + n * 8 + lane % 4 * 2) = make_float2(out[n][2 * h], out[n][2 * h + 1]);
    const int64_t all = int64_t(args.p.count) * s.kv_heads * args.p.rows;
    if (lane % 4 == 0)
      *reinterpret_cast<float2*>(a.scratch + all * D + at * 2) = make_float2(most[h], sum[h]);
  }
}

// A warp has a row: the pieces' outputs, each by its share of the sum.
template <int D>
__global__ void __launch_bounds__(kThreads) join_kernel(const __grid_constant__ SplitArgs args) {
  allow_next();
  await_previous();
  const SplitArgs& a = args;
  const AttentionShape& s = a.shape;
  const int64_t every = int64_t(s.kv_heads) * args.p.rows;
  const int64_t row = blockIdx.x * int64_t(kThreads / 32) + warp_id();
  if (row >= every) return;
  constexpr int kW = D / 32;
  Vec<kW> piece[kAtOnce];
  const auto load_pieces = [&](int p0) {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (p0 + u < args.p.count)
        piece[u] = slip::load<kW>(a.scratch + ((p0 + u) * every + row) * D + lane_id() * kW);
    }
  };
  load_pieces(0);
  const float2* const weights = reinterpret_cast<const float2*>(a.scratch + every * args.p.count * D);
  const float2 mine = lane_id() < args.p.count ? weights[lane_id() * every + row] : make_float2(-INFINITY, 0);
  const float most = warp_max(mine.x);  // the first key is seen by every row
  const float share = mine.x == -INFINITY ? 0 : exp2f(mine.x - most);
  const float sum = warp_sum(share * mine.y), inverse = 1 / sum;
  float out[kW] = {};
  for (int p0 = 0; p0 < args.p.count; p0 += kAtOnce) {
    if (p0 > 0) load_pieces(p0);
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const float factor = __shfl_sync(~0u, share, (p0 + u) % 32);
      if (p0 + u >= args.p.count) break;
#pragma unroll
      for (int i = 0; i < kW; ++i) out[i] += factor * piece[u][i];
    }
  }
  const BlockRows rows{s, 0, int(row / args.p.rows)};
  const int r = int(row % args.p.rows);
  if (a.lse != nullptr && lane_id() == 0) a.lse[rows.statistic(r)] = most * kLn2 + logf(sum);
  Bf16* const to = rows.at(a.out, r) + lane_id() * kW;
#pragma unroll
  for (int i = 0; i < kW; i += 2)
    *reinterpret_cast<uint32_t*>(to + i) = slip::pack_bf16(out[i] * inverse, out[i + 1] * inverse);
}

template <int D> void launch(const SplitArgs& args, CudaStream stream) {
  static const bool ready = [] {
    check(
        cudaFuncSetAttribute(split_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<D>));
    return true;
  }();
  (void)ready;
  const int kv_heads = args.shape.kv_heads;
  const dim3 grid(unsigned(args.p.tiles), unsigned(kv_heads), unsigned(args.p.count));
  launch_early(split_kernel<D>, grid, kThreads, kSharedBytes<D>, stream, args);
  if (args.p.count == 1) return;
  const int64_t rows = int64_t(kv_heads) * args.p.rows;
  launch_early(join_kernel<D>, unsigned((rows + kThreads / 32 - 1) / (kThreads / 32)), kThreads, 0, stream,
               args);
}

void launch(SplitArgs& args, CudaStream stream) {
  args.p = pieces_of(args.shape, args.shape.block, args.total);
  if (args.scratch == nullptr) args.p.count = 1, args.p.keys = (args.total + kKeys - 1) / kKeys * kKeys;
  switch (args.shape.head_dim) {
    case 64:
      return launch<64>(args, stream);
    case 128:
      return launch<128>(args, stream);
    default:
      return launch<256>(args, stream);
  }
}

bool has_kernel(int head_dim) { return head_dim == 64 || head_dim == 128 || head_dim == 256; }

}  // namespace

bool split_takes(const CacheAttentionFwd<Bf16>& a) {
  return has_kernel(a.shape.head_dim) && all_fit<8>(a.q, a.k, a.v, a.out, a.kv_new, a.kv_end);
}

void cache_attention_split(const CacheAttentionFwd<Bf16>& a, CudaStream stream) {
  SplitArgs args{.shape = a.shape,
                 .q = a.q,
                 .k = a.k,
                 .v = a.v,
                 .k_block = {},
                 .v_block = {},
                 .out = a.out,
                 .scratch = a.scratch,
                 .first_own = int(a.k.rows - a.q.rows),
                 .total = int(a.k.rows),
                 .p = {}};
  args.shape.block = int(a.q.rows);
  args.shape.causal = true;
  if (!a.kv_new.empty()) {
    args.k.rows = args.v.rows = args.first_own;
    args.k_block = a.kv_new.cols_from(0, a.k.cols);
    args.v_block = a.kv_new.cols_from(a.k.cols, a.k.cols);
    args.kv_new = a.kv_new;
    args.kv_end = a.kv_end;
  }
  launch(args, stream);
}

bool split_takes(const BlockAttentionFwd<Bf16>& a) {
  return a.scratch != nullptr && a.q.rows == a.shape.block && has_kernel(a.shape.head_dim) &&
         all_fit<8>(a.q, a.k_context, a.v_context, a.k_block, a.v_block, a.out);
}

void block_attention_split(const BlockAttentionFwd<Bf16>& a, CudaStream stream) {
  require_block_shape(a.shape, a.q.rows, a.q.cols, a.k_context.cols, a.k_block.cols);
  SplitArgs args{.shape = a.shape,
                 .q = a.q,
                 .k = a.k_context,
                 .v = a.v_context,
                 .k_block = a.k_block,
                 .v_block = a.v_block,
                 .anchor = a.anchor,
                 .lo = a.lo,
                 .out = a.out,
                 .lse = a.lse,
                 .scratch = a.scratch,
                 .first_own = int(a.k_context.rows),
                 .total = int(a.k_context.rows + a.shape.block),
                 .p = {}};
  launch(args, stream);
}

}  // namespace slip
