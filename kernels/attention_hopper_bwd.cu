// Block-diffusion attention backward on sm_90a, three kernels:
//   prepare (here): rowsum(dout * out), bounds of every draft token, and which units see which tile of keys;
//   context: a tile of context keys and a key/value head belong to one thread block, which goes through the
//   units that see the tile; dK and dV stay in registers and are added to the caller's once;
//   queries: like the forward pass, a warpgroup has a unit; dQ, and dK and dV of the unit's own blocks.
// The context has two forms. In the separate one (attention_hopper_context.cu, whose work a thread block of
// prepare deals) dQ is left to the queries' kernel, which computes the scores again: seven products. In the
// fused one (attention_hopper_fused.cu) tiles add their shares of dQ up in memory, and the queries' kernel
// has the own blocks to do: five products.
#include "kernels/attention_hopper_bwd.cuh"

#include <algorithm>
#include <bit>

#include "device/cuda.hpp"

namespace slip {
namespace {
using namespace hopper;

struct Scratch {   // offsets in floats
  int64_t stride;  // tokens, padded: of the rows of lse2 and delta
  int64_t lse2, delta, bounds, range, items, begin, owner, partial, sums, turns, total;
};
int64_t padded(int64_t n) { return (n + 63) / 64 * 64; }

int64_t sums_of(const AttentionShape& s, int64_t blocks) {
  const UnitShape u = unit_shape(s);
  return (blocks * s.block + u.tokens - 1) / u.tokens * s.kv_heads * u.subs;
}

Scratch scratch_of(const AttentionShape& s, int64_t blocks, int64_t context, bool fused) {
  const UnitShape u = unit_shape(s);
  const int64_t tiles = (context + kRows - 1) / kRows;
  Scratch x{};
  x.stride = padded(blocks * s.block);
  x.delta = x.lse2 + x.stride * s.heads;
  x.bounds = x.delta + x.stride * s.heads;
  x.range = x.bounds + x.stride * 2;
  x.items = x.range + padded(tiles * 2);
  x.begin = x.items + padded(tiles * s.kv_heads);
  x.owner = x.begin + padded(kMaxBlocks + 1);
  x.partial = x.owner + padded(tiles * s.kv_heads);
  // dK and dV of own blocks, of every computing thread, while the units of a key/value head follow each other
  x.sums = x.partial + (u.subs > 1 ? int64_t(kMaxBlocks) * 2 * u.tokens * s.head_dim * 2 : 0);
  const int64_t sums = fused ? sums_of(s, blocks) : 0;
  x.turns = x.sums + sums * kFusedSum;
  x.total = x.turns + padded(sums + 1);  // and the ticket
  return x;
}

constexpr int kPrepareThreads = 256, kPrepareTokens = 16, kPrepareHeads = 16, kDealt = 2048;

// Ranges of all tiles; then the items, longest first, each to the thread block with the least work so far.
__device__ void deal_context(const BwdArgs& a) {
  __shared__ int cost[kDealt], order[kDealt], count[kMaxBlocks + 1];
  const int tid = threadIdx.x;
  for (int t = tid; t < a.tiles; t += kPrepareThreads) {
    const int first = t * a.tile_keys, last = min(first + a.tile_keys, a.context);
    auto search = [&](int from, auto&& reached) {  // first unit for which it holds: it holds for all after
      int low = from, high = a.units;
      while (low < high) {
        const int mid = (low + high) / 2;
        if (reached(mid))
          high = mid;
        else
          low = mid + 1;
      }
      return low;
    };
    const int x = search(0, [&](int u) { return unit_span(a.rows, u, a.unit_tokens).high > first; });
    const int y = search(x, [&](int u) { return unit_span(a.rows, u, a.unit_tokens).low >= last; });
    a.range[t] = {x, y};
    if (t < kDealt) cost[t] = (y - x) * a.subs + 4;  // 4: loading the keys, adding the results
  }
  if (a.fused.sums != nullptr) {  // thread blocks ask for their items
    if (tid == 0) *a.fused.ticket = 0;
    return;
  }
  __syncthreads();
  const int items = a.tiles * a.kv_heads, grid = a.context_grid;
  if (items > kDealt) {  // enough items for rounds to even out: dealt in turn
    for (int r = tid; r < items; r += kPrepareThreads) {
      const int round = r / grid, at = r - round * grid, me = round & 1 ? grid - 1 - at : at;
      const int full = items / grid, rest = items - full * grid;
      // thread blocks before it have the full rounds; the last round covers `rest` of all, from the front or
      // the back
      const int extra = full & 1 ? max(0, me - (grid - rest)) : min(me, rest);
      a.items[me * full + extra + round] = r;
    }
    for (int b = tid; b <= grid; b += kPrepareThreads) {
      const int full = items / grid, rest = items - full * grid;
      a.begin[b] = b * full + (full & 1 ? max(0, b - (grid - rest)) : min(b, rest));
    }
    return;
  }
  for (int t = tid; t < a.tiles; t += kPrepareThreads) {
    int place = 0;
    for (int q = 0; q < a.tiles; ++q) place += cost[q] > cost[t] || (cost[q] == cost[t] && q < t);
    order[place] = t;
  }
  __syncthreads();
  // Items of a tile cost the same. Where that divides evenly, some of the heads and of the thread blocks go
  // to each of several warps, which deal at the same time.
  int warps = 8;
  while (grid % warps || a.kv_heads % warps) warps /= 2;
  if (tid < 32 * warps) {
    constexpr int kPer = kMaxBlocks / 32;
    const int lane = tid % 32, mine = grid / warps, first = tid / 32 * mine, heads = a.kv_heads / warps,
              head = tid / 32 * heads;
    unsigned load[kPer];  // work so far << 8 | thread block, of the thread blocks first + lane + 32 i
    int given[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) load[i] = lane + 32 * i < mine ? first + lane + 32 * i : ~0u, given[i] = 0;
    long long sum = 0;
    for (int t = lane; t < a.tiles; t += 32) sum += static_cast<long long>(cost[t]) * heads;
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
    int shift = 0;  // so that all the work fits 23 bits
    while (sum >> shift >= 1 << 23) ++shift;
    for (int t = 0; t < a.tiles; ++t) {
      const unsigned more = ((unsigned(cost[order[t]]) >> shift) + 1) << 8;
      for (int h = head; h < head + heads; ++h) {
        unsigned least = load[0];
#pragma unroll
        for (int i = 1; i < kPer; ++i) least = min(least, load[i]);
        least = __reduce_min_sync(~0u, least);
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
          if (load[i] == least) {
            load[i] += more;
            a.owner[t * a.kv_heads + h] = (least & 255) | given[i]++ << 8;
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kPer; ++i)
      if (lane + 32 * i < mine) count[first + lane + 32 * i] = given[i];
  }
  __syncthreads();
  if (tid == 0) {
    int sum = 0;
    for (int b = 0; b <= grid; ++b) {
      const int n = b < grid ? count[b] : 0;
      count[b] = sum;
      a.begin[b] = sum;
      sum += n;
    }
  }
  __syncthreads();
  for (int r = tid; r < items; r += kPrepareThreads) {
    const int o = a.owner[r];
    a.items[count[o & 255] + (o >> 8)] = order[r / a.kv_heads] * a.kv_heads + r % a.kv_heads;
  }
}

struct RowSums {
  View2<const Bf16> out, dout;
};

// Block 0 deals; the others take 16 tokens by 16 heads each. Rows are read in pieces of 16 bytes.
template <int D>
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(const __grid_constant__ RowSums x, const __grid_constant__ BwdArgs a) {
#if SLIP_HOPPER_CODE
  if (blockIdx.x == 0) return deal_context(a);
  if (a.fused.sums != nullptr) {
    const int sums = a.units * a.kv_heads * a.subs;
    for (int i = (blockIdx.x - 1) * kPrepareThreads + threadIdx.x; i < sums;
         i += (gridDim.x - 1) * kPrepareThreads)
      a.fused.turns[i] = 0;
  }
  constexpr int kLanes = D / 8, kAtOnce = kPrepareThreads / kLanes,
                kPasses = kPrepareTokens * kPrepareHeads / kAtOnce;
  __shared__ float sums[kPrepareHeads][kPrepareTokens + 1];
  const int columns = (a.heads + kPrepareHeads - 1) / kPrepareHeads;
  const int token0 = (blockIdx.x - 1) / columns * kPrepareTokens,
            head0 = (blockIdx.x - 1) % columns * kPrepareHeads;
  const int lane = threadIdx.x % kLanes, tokens = a.rows.tokens();
#pragma unroll 4
  for (int i = 0; i < kPasses; ++i) {
    const int at = i * kAtOnce + threadIdx.x / kLanes, t = at / kPrepareHeads, h = at % kPrepareHeads;
    float sum = 0;
    if (token0 + t < tokens && head0 + h < a.heads) {
      const int64_t column = int64_t(head0 + h) * D + lane * 8;
      const uint4 o = *reinterpret_cast<const uint4*>(x.out.row(token0 + t) + column);
      const uint4 d = *reinterpret_cast<const uint4*>(x.dout.row(token0 + t) + column);
      const unsigned os[4] = {o.x, o.y, o.z, o.w}, ds[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sum += __uint_as_float(os[e] << 16) * __uint_as_float(ds[e] << 16);
        sum += __uint_as_float(os[e] & 0xffff0000u) * __uint_as_float(ds[e] & 0xffff0000u);
      }
    }
#pragma unroll
    for (int k = kLanes / 2; k; k >>= 1) sum += __shfl_xor_sync(~0u, sum, k);
    if (lane == 0) sums[h][t] = sum;
  }
  __syncthreads();
  const int t = threadIdx.x % kPrepareTokens, h = threadIdx.x / kPrepareTokens, token = token0 + t,
            head = head0 + h;
  static_assert(kPrepareThreads == kPrepareTokens * kPrepareHeads);
  if (head < a.heads) {
    const bool real = token < tokens;
    a.delta[head * a.stride + token] = real ? sums[h][t] : 0;
    a.lse2[head * a.stride + token] = real ? a.lse[int64_t(token) * a.heads + head] * kLog2e : 0;
  }
  if (head == 0) a.bounds[token] = context_bounds(a.rows, token);
#endif
}

template <int D>
void launch_prepare(const BlockAttentionBwd<Bf16>& a, const BwdArgs& args, CudaStream stream) {
  const int64_t columns = (a.shape.heads + kPrepareHeads - 1) / kPrepareHeads;
  prepare_kernel<D>
      <<<1 + args.stride / kPrepareTokens * columns, kPrepareThreads, 0, stream>>>({a.out, a.dout}, args);
  check(cudaGetLastError());
}

bool is_fused(BackwardForm f) { return f == BackwardForm::fused || f == BackwardForm::fused_both_ways; }

// Of one document without a window the first tile's items are as long as all the units: it takes about two
// items for each multiprocessor before those are not all there is to wait for. Where a row has documents or a
// window, the fused form's tiles wait for each other more and the separate form leaves more out; four are
// what it takes. Constants, because the forms do not give the same bits.
BackwardForm fastest_form(const AttentionShape& s, int64_t context, bool one_document) {
  const int64_t items = (context + 127) / 128 * s.kv_heads;
  const bool nested = one_document && s.window == 0;
  if (!hopper_supports(s, BackwardForm::fused) || items < (nested ? kWave * 15 / 8 : kWave * 4))
    return BackwardForm::separate;
  return nested && items <= kWave * 2 ? BackwardForm::fused_both_ways : BackwardForm::fused;
}

}  // namespace

bool hopper_supports(const AttentionShape& s, BackwardForm form) {
  return unit_shape(s).tokens > 0 &&
         (!is_fused(form) || (s.head_dim == 128 && unit_shape(s).tokens <= kFusedTokens));
}

int64_t block_attention_bwd_hopper_scratch(const AttentionShape& s, int64_t blocks, int64_t context,
                                           BackwardForm form) {
  if (form == BackwardForm::fastest) form = fastest_form(s, context, true);
  return unit_shape(s).tokens == 0 ? 0 : scratch_of(s, blocks, context, is_fused(form)).total;
}

void block_attention_bwd_hopper(const BlockAttentionBwd<Bf16>& a, CudaStream stream, BackwardForm form) {
  require(hopper_supports(a), "block_attention_bwd_hopper: device, shape, strides or alignment do not fit");
  if (a.q.rows == 0) return;
  const AttentionShape& s = a.shape;
  const UnitShape u = unit_shape(s);
  const int blocks = static_cast<int>(a.q.rows / s.block);
  if (form == BackwardForm::fastest) form = fastest_form(s, a.k_context.rows, a.one_document);
  const bool fused = is_fused(form);
  const Scratch x = scratch_of(s, blocks, a.k_context.rows, fused);
  BwdArgs args{
      .rows = {a.anchor, a.lo, blocks, std::countr_zero(unsigned(s.block)), s.window ? s.window : INT_MAX},
      .lse = a.lse,
      .lse2 = a.scratch + x.lse2,
      .delta = a.scratch + x.delta,
      .stride = x.stride,
      .bounds = reinterpret_cast<Bounds*>(a.scratch + x.bounds),
      .range = reinterpret_cast<int2*>(a.scratch + x.range),
      .items = reinterpret_cast<int*>(a.scratch + x.items),
      .begin = reinterpret_cast<int*>(a.scratch + x.begin),
      .owner = reinterpret_cast<int*>(a.scratch + x.owner),
      .partial = a.scratch + x.partial,
      .fused = {},
      .dk = a.dk_context,
      .dv = a.dv_context,
      .heads = s.heads,
      .kv_heads = s.kv_heads,
      .group = s.heads / s.kv_heads,
      .units = (blocks * s.block + u.tokens - 1) / u.tokens,
      .unit_tokens = u.tokens,
      .unit_heads = u.heads,
      .subs = u.subs,
      .context = static_cast<int>(a.k_context.rows),
      .causal = s.causal,
      .scale = s.scale};
  const int limit = std::min(device_limits().multiprocessors, kMaxBlocks);
  if (fused) {
    auto* const turns = reinterpret_cast<unsigned*>(a.scratch + x.turns);
    args.fused = {a.scratch + x.sums, turns, turns + sums_of(s, blocks),
                  form == BackwardForm::fused_both_ways ? kWave : INT_MAX};
  }
  // Fewer than four items a multiprocessor do not even out: items of half the size are worth their own
  // streams.
  const bool split = !fused && (a.k_context.rows + 127) / 128 * s.kv_heads < 4 * limit;
  args.tile_keys = context_tile_keys(split);
  args.tiles = static_cast<int>((a.k_context.rows + args.tile_keys - 1) / args.tile_keys);
  args.context_grid = std::max(1, std::min(limit - a.leave_multiprocessors, args.tiles * args.kv_heads));
  s.head_dim == 128 ? launch_prepare<128>(a, args, stream) : launch_prepare<64>(a, args, stream);
  if (args.tiles > 0) fused ? launch_fused(a, args, stream) : launch_context(a, args, split, stream);
  launch_query(a, args, stream);
}

}  // namespace slip
