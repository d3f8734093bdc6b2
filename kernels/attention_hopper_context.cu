// Backward pass: dK and dV of the context.
//
// kSplit: 64 keys, and the units go to the two warpgroups in turn, whose sums are added at the end: twice as
// many items of half the length. Otherwise 128 keys, 64 for each warpgroup, and both see every unit.
// Warp 0 of warpgroup 0 loads, in the split form also the next item's keys and values while this one's are
// read; warp 1 has the gradients that will be added to fetched into L2.
#include "kernels/attention_hopper_bwd.cuh"
#include "kernels/device/tma.cuh"
#include "kernels/device/wgmma.cuh"

namespace slip {
namespace {
using namespace hopper;

template <int D, bool kSplit> struct ContextTile {
  static constexpr int kKeys = kSplit ? 64 : 128;
  static constexpr int kStages = kSplit ? 4 : 3;   // split: two for each warpgroup
  static constexpr int kBuffers = kSplit ? 2 : 1;  // of keys and values
  static constexpr int kTile = kKeys * D * 2, kChunk = kKeys * 128;
  static constexpr int kQ = kRows * D * 2, kQChunk = kRows * 128, kStage = 2 * kQ;
  static constexpr int kPair = 2 * kTile, kFirst = kBuffers * kPair;  // keys and values, then the stages
  static constexpr int kStats = kFirst + kStages * kStage;  // of a stage: lse2, delta, bounds of 64 rows
  static constexpr int kStat = 1024;
  static constexpr int kBars = kStats + kStages * kStat;
  static constexpr int kBytes = kBars + 256 + 1024;
  static_assert(kBytes <= kMaxSharedBytes);
  static_assert(!kSplit || kPair == kRows * D * 4);  // sums change hands where the keys and values were
};

template <int D, bool kSplit>
__global__ void __launch_bounds__(kThreads, 1)
    context_kernel(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_dout,
                   const __grid_constant__ TensorMap map_k, const __grid_constant__ TensorMap map_v,
                   const __grid_constant__ TensorMap map_lse2, const __grid_constant__ TensorMap map_delta,
                   const __grid_constant__ BwdArgs a) {
#if SLIP_HOPPER_CODE
  using C = ContextTile<D, kSplit>;
  constexpr int kStages = C::kStages, kTurn = kSplit ? 2 : 1;
  extern __shared__ uint8_t pool_memory[];
  const uint32_t pool = (shared_address(pool_memory) + 1023) & ~1023u, bars = pool + C::kBars;
  uint8_t* const pool_at = pool_memory + (pool - shared_address(pool_memory));
  const uint32_t stages = pool + C::kFirst;  // before them, pairs of key and value tiles
  auto full = [&](int s) { return bars + 8 * s; };
  auto empty = [&](int s) { return bars + 8 * (kStages + s); };
  // Step n of a warpgroup's queue. The queues of the split form are apart: a warpgroup that saw only every
  // other lap of a stage could take the lap before last for the one it waits for.
  auto stage_of = [](int w, int n) { return kSplit ? 2 * w + n % 2 : n % kStages; };
  auto parity_of = [](int n) { return uint32_t(n / (kSplit ? 2 : kStages) & 1); };
  auto kv_full = [&](int b) { return bars + 16 * kStages + 8 * b; };
  auto kv_empty = [&](int b) { return kv_full(b + C::kBuffers); };
  const int wg = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) mbar_init(full(s), 1), mbar_init(empty(s), kSplit ? 4 : 8);
    for (int b = 0; b < C::kBuffers; ++b) mbar_init(kv_full(b), 1), mbar_init(kv_empty(b), 9);
    mbar_init_fence();
    prefetch_maps(map_q, map_dout, map_k, map_v, map_lse2, map_delta);
  }
  __syncthreads();
  const int begin = uniform(a.begin[blockIdx.x]), end = uniform(a.begin[blockIdx.x + 1]);

  if (wg == 0) {
    registers_down<24>();
    if (warp == 0 && lane == 0) {
      int taken[2] = {0, 0};  // steps of each warpgroup's queue; shared: of the one queue
      Ring<C::kBuffers> kv;
      const int stat_bytes = 2 * kRows * 4 + a.unit_tokens * int(sizeof(Bounds));
#pragma unroll 1
      for (int x = begin; x < end; ++x) {
        const int item = a.items[x], tile = item / a.kv_heads, g = item % a.kv_heads;
        const int2 range = a.range[tile];
        if (range.x == range.y) continue;
        const uint32_t k_tile = pool + kv.stage * C::kPair, ready = kv_full(kv.stage);
        mbar_wait(kv_empty(kv.stage), kv.parity ^ 1);
        mbar_expect(ready, C::kPair);
        for (int c = 0; c < D / 64; ++c) {
          tma_load(k_tile + c * C::kChunk, map_k, ready, 64 * c, tile * C::kKeys, g);
          tma_load(k_tile + C::kTile + c * C::kChunk, map_v, ready, 64 * c, tile * C::kKeys, g);
        }
        kv.next();
#pragma unroll 1
        for (int unit = range.x, to = 0; unit < range.y; ++unit) {
          const int token = unit * a.unit_tokens;
#pragma unroll 1
          for (int head = g * a.group; head < (g + 1) * a.group; head += a.unit_heads) {
            const int n = to ? taken[1]++ : taken[0]++, s = stage_of(to, n);
            if (kSplit) to ^= 1;
            const uint32_t q = stages + s * C::kStage, stat = pool + C::kStats + s * C::kStat;
            mbar_wait(empty(s), parity_of(n) ^ 1);
            mbar_expect(full(s), C::kStage + stat_bytes);
            for (int c = 0; c < D / 64; ++c)
              tma_load(q + c * C::kQChunk, map_q, full(s), 64 * c, token, head);
            tma_load(stat, map_lse2, full(s), token, head);
            for (int c = 0; c < D / 64; ++c)
              tma_load(q + C::kQ + c * C::kQChunk, map_dout, full(s), 64 * c, token, head);
            tma_load(stat + kRows * 4, map_delta, full(s), token, head);
            bulk_load(stat + 2 * kRows * 4, a.bounds + token, a.unit_tokens * sizeof(Bounds), full(s));
          }
        }
      }
    } else if (warp == 1) {
      Ring<C::kBuffers> kv;
#pragma unroll 1
      for (int x = begin; x < end; ++x) {
        const int item = a.items[x], tile = item / a.kv_heads, g = item % a.kv_heads;
        const int2 range = a.range[tile];
        if (range.x == range.y) continue;
        mbar_wait(kv_full(kv.stage), kv.parity);  // not before the item's turn: L2 has other uses
        __syncwarp();
        if (lane == 0) mbar_arrive(kv_empty(kv.stage));
        kv.next();
        constexpr int kLine = 32;  // floats
        const int first = tile * C::kKeys, keys = min(C::kKeys, a.context - first);
        for (int n = lane; n < keys * (D / kLine); n += 32) {
          const int key = first + n / (D / kLine), column = g * D + n % (D / kLine) * kLine;
          prefetch_l2(a.dk.row(key) + column), prefetch_l2(a.dv.row(key) + column);
        }
      }
    }
  } else {
    registers_up<240>();
    const int w = wg - 1, row = 16 * warp + lane / 4, col = 2 * (lane & 3), half = kSplit ? 0 : w;
    const float c = a.scale * kLog2e;
    const uint64_t rows_k = k_major(stages),
                   rows_mn = mn_major(stages, C::kQChunk);  // queries; dout is kQ further
    int at = 0;                                             // step of this warpgroup's queue
    Ring<C::kBuffers> kv;
#pragma unroll 1
    for (int x = begin; x < end; ++x) {
      const int item = uniform(a.items[x]), tile = item / a.kv_heads, g = item % a.kv_heads;
      const int steps = uniform((a.range[tile].y - a.range[tile].x) * a.subs);
      if (steps == 0) continue;
      const int first = tile * C::kKeys + 64 * half;  // key of this warpgroup
      const uint32_t k_tile = pool + kv.stage * C::kPair, free = kv_empty(kv.stage);
      const uint64_t k_desc = k_major(k_tile + half * 8192), v_desc = k_desc + step(C::kTile);
      float dk[D / 2], dv[D / 2], s[32], dp[32];
      uint32_t p[16], ds[16];
#pragma unroll
      for (int e = 0; e < D / 2; ++e) dk[e] = dv[e] = 0;
      mbar_wait(kv_full(kv.stage), kv.parity);
      // The order keeps no more than one of S, dP ahead of what reads it: together they would not fit the
      // registers.
#pragma unroll 1
      for (int i = kSplit ? w : 0; i < steps; i += kTurn, ++at) {
        const int st = stage_of(w, at);
        const uint64_t off = step(st * C::kStage);
        const uint8_t* const stat = pool_at + C::kStats + st * C::kStat;
        mbar_wait(full(st), parity_of(at));
        pin(s);
        wgmma_fence();
#pragma unroll
        for (int t = 0; t < D / 16; ++t)
          WgmmaSS<64, 0, 0>::call(s, k_desc + k_step(t, C::kChunk), rows_k + off + k_step(t, C::kQChunk),
                                  t > 0);
        wgmma_commit();
        wgmma_wait<1>();  // dV and dK of the step before
        pin(dk), pin(dv);
        if (i >= kTurn && lane == 0) mbar_arrive(empty(stage_of(w, at - 1)));
        pin(dp);
        wgmma_fence();
#pragma unroll
        for (int t = 0; t < D / 16; ++t)
          WgmmaSS<64, 0, 0>::call(dp, v_desc + k_step(t, C::kChunk),
                                  rows_k + off + step(C::kQ) + k_step(t, C::kQChunk), t > 0);
        wgmma_commit();
        const float2* const lse2 = reinterpret_cast<const float2*>(stat) + col / 2;
        const float2* const delta = lse2 + kRows / 2;
        const Bounds* const bounds = reinterpret_cast<const Bounds*>(stat + 2 * kRows * 4);
        const int all_high = uniform(bounds[0].high), all_low = uniform(bounds[a.unit_tokens - 1].low);
        wgmma_wait<1>();
        pin(s);
        if (all_high < first + 64 || all_low > first) hide_unseen(s, bounds, a.unit_tokens, first + row, col);
        weigh(s, p, lse2, c);
        pin(p);
        wgmma_fence();
#pragma unroll
        for (int t = 0; t < 4; ++t)
          WgmmaRS<D, 1>::call(dv, p + 4 * t, rows_mn + off + step(C::kQ + t * 2048), 1);
        wgmma_commit();
        wgmma_wait<1>();
        pin(dp);
        score_gradients(ds, s, dp, delta);
        pin(ds);
        wgmma_fence();
#pragma unroll
        for (int t = 0; t < 4; ++t) WgmmaRS<D, 1>::call(dk, ds + 4 * t, rows_mn + off + step(t * 2048), 1);
        wgmma_commit();
      }
      wgmma_wait<0>();
      pin(dk), pin(dv);
      if (lane == 0 && (!kSplit || w < steps)) mbar_arrive(empty(stage_of(w, at - 1)));
      if (!kSplit && lane == 0) mbar_arrive(free);
      const int key = first + row;
      if constexpr (kSplit) {  // warpgroup 0 finishes dK, 1 dV; each hands its part of the other's over, 1
                               // first
        float4* const swap = reinterpret_cast<float4*>(pool_at + kv.stage * C::kPair) + threadIdx.x % 128;
        bar_sync(3, 256);  // nobody reads the keys and values any more
        if (w == 1) {
#pragma unroll
          for (int e = 0; e < D / 8; ++e)
            swap[e * 128] = {dk[4 * e], dk[4 * e + 1], dk[4 * e + 2], dk[4 * e + 3]};
        }
        bar_sync(1, 256);
        if (w == 0) {  // a thread reads and writes its own places only
#pragma unroll
          for (int e = 0; e < D / 8; ++e) {
            const float4 y = swap[e * 128];
            dk[4 * e] += y.x, dk[4 * e + 1] += y.y, dk[4 * e + 2] += y.z, dk[4 * e + 3] += y.w;
            swap[e * 128] = {dv[4 * e], dv[4 * e + 1], dv[4 * e + 2], dv[4 * e + 3]};
          }
        }
        bar_sync(2, 256);
        if (w == 1) {
#pragma unroll
          for (int e = 0; e < D / 8; ++e) {
            const float4 y = swap[e * 128];
            dv[4 * e] += y.x, dv[4 * e + 1] += y.y, dv[4 * e + 2] += y.z, dv[4 * e + 3] += y.w;
          }
        }
        fence_async_shared();  // TMA writes there next
        __syncwarp();
        if (lane == 0) mbar_arrive(free);
      }
      if (!kSplit || w == 0) add_rows(a.dk, key, g * D + col, dk, a.scale);
      if (!kSplit || w == 1) add_rows(a.dv, key, g * D + col, dv, 1.f);
      kv.next();
    }
  }
#endif
}

template <int D, bool kSplit>
void launch(const BlockAttentionBwd<Bf16>& a, const BwdArgs& args, CudaStream stream) {
  using C = ContextTile<D, kSplit>;
  check(cudaFuncSetAttribute(context_kernel<D, kSplit>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             C::kBytes));
  const int tokens = args.unit_tokens, heads = args.unit_heads;
  context_kernel<D, kSplit><<<args.context_grid, kThreads, C::kBytes, stream>>>(
      head_map(a.q, D, tokens, heads), head_map(a.dout, D, tokens, heads),
      head_map(a.k_context, D, C::kKeys, 1), head_map(a.v_context, D, C::kKeys, 1),
      row_map(args.lse2, args.heads, a.q.rows, args.stride, tokens, heads),
      row_map(args.delta, args.heads, a.q.rows, args.stride, tokens, heads), args);
  check(cudaGetLastError());
}

}  // namespace

namespace hopper {

int context_tile_keys(bool split) { return split ? 64 : 128; }

void launch_context(const BlockAttentionBwd<Bf16>& a, const BwdArgs& args, bool split, CudaStream stream) {
  if (a.shape.head_dim == 128)
    return split ? launch<128, true>(a, args, stream) : launch<128, false>(a, args, stream);
  split ? launch<64, true>(a, args, stream) : launch<64, false>(a, args, stream);
}

}  // namespace hopper
}  // namespace slip
