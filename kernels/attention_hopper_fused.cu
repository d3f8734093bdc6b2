// Backward pass over the context in five products: dK and dV of a tile of 128 keys and a key/value head, and
// what the tile gives to dQ of every unit that sees it. For long contexts, where there are tiles enough.
//
// dQ of a unit is added up in global memory, by bulk copies that add. They come in the order of the tiles: a
// turn per unit counts the tiles that are in, the first of them writes. Thread blocks take the items from a
// ticket, lowest tile first, so the lowest item under way waits for nobody, however many thread blocks run.
//
// Units are gone through last to first, so that tiles that began together read the same queries from L2 and
// add to the same sums there. Where every thread block has two items and units see all that lies before them,
// the second halves' tiles begin where the first halves' ends leave room, and go upwards together.
//
// Warp 0 of warpgroup 0 takes items and loads, 1 fetches gradients into L2, 2 and 3 send a buffer of dQ away
// each. A computing warpgroup has 64 keys of dK and dV, and 64 columns of dQ: dS changes hands through shared
// memory, because dQ sums over all keys of the tile.
#include "kernels/attention_hopper_bwd.cuh"
#include "kernels/device/tma.cuh"
#include "kernels/device/wgmma.cuh"

namespace slip {
namespace {
using namespace hopper;

struct FusedTile {
  static constexpr int D = 128, kKeys = 128, kStages = 2;
  static constexpr int kTile = kKeys * D * 2, kChunk = kKeys * 128;
  static constexpr int kQ = kRows * D * 2, kQChunk = kRows * 128, kStage = 2 * kQ;
  static constexpr int kFirst = 2 * kTile;                   // keys and values, then the stages
  static constexpr int kScores = kFirst + kStages * kStage;  // dS of two steps, a row a key
  static constexpr int kScore = kKeys * 128;
  static constexpr int kSums = kScores + 2 * kScore, kSum = kRows * D * 4;  // dQ of two steps
  static constexpr int kStats = kSums + 2 * kSum, kStat = 768;              // lse2, delta, bounds
  static constexpr int kBars = kStats + kStages * kStat;
  static constexpr int kItem = kBars + 128, kBytes = kBars + 256 + 1024;
  static_assert(kBytes <= kMaxSharedBytes && kSum == kFusedSum * 4 && 8 * kRows + 8 * kFusedTokens <= kStat);
};

__device__ __forceinline__ void wait_turn(const unsigned* turn, unsigned mine) {
  unsigned now;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  } while (now != mine);
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
__device__ __forceinline__ void pass_turn(unsigned* turn, unsigned next) {
  asm volatile("fence.proxy.async.global;" ::: "memory");
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(turn), "r"(next) : "memory");
}

// The i-th unit of an item.
__device__ __forceinline__ int unit_at(int2 range, int i, bool upwards) {
  return upwards ? range.x + i : range.y - 1 - i;
}

__global__ void __launch_bounds__(kThreads, 1)
    fused_kernel(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_dout,
                 const __grid_constant__ TensorMap map_k, const __grid_constant__ TensorMap map_v,
                 const __grid_constant__ TensorMap map_lse2, const __grid_constant__ TensorMap map_delta,
                 const __grid_constant__ BwdArgs a) {
#if SLIP_HOPPER_CODE
  using C = FusedTile;
  constexpr int D = C::D;
  extern __shared__ uint8_t pool_memory[];
  const uint32_t pool = (shared_address(pool_memory) + 1023) & ~1023u, bars = pool + C::kBars;
  uint8_t* const pool_at = pool_memory + (pool - shared_address(pool_memory));
  const uint32_t v_tile = pool + C::kTile, stages = pool + C::kFirst;
  auto full = [&](int s) { return bars + 8 * s; };
  auto empty = [&](int s) { return bars + 16 + 8 * s; };
  const uint32_t kv_full = bars + 32, kv_empty = bars + 40;
  auto sum_full = [&](int b) { return bars + 48 + 8 * b; };
  auto sum_empty = [&](int b) { return bars + 64 + 8 * b; };
  const uint32_t late = bars + 80;                                             // an item is near its end
  auto* const item_now = reinterpret_cast<volatile int*>(pool_at + C::kItem);  // with kv_full; -1: no more
  const int wg = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) mbar_init(full(s), 1), mbar_init(empty(s), 8);
    for (int b = 0; b < 2; ++b) mbar_init(sum_full(b), 8), mbar_init(sum_empty(b), 1);
    mbar_init(kv_full, 1), mbar_init(kv_empty, 11), mbar_init(late, 1);
    mbar_init_fence();
    prefetch_maps(map_q, map_dout, map_k, map_v, map_lse2, map_delta);
  }
  __syncthreads();

  if (wg == 0) {
    registers_down<24>();
    if (warp == 0 && lane == 0) {
      Ring<2> ring;
      uint32_t parity = 1;
      const int items = a.tiles * a.kv_heads;
      int next = atomicAdd(a.fused.ticket, 1);
#pragma unroll 1
      for (int item = next; item < items; item = next) {
        const int tile = item / a.kv_heads, g = item % a.kv_heads;
        const int2 range = a.range[tile];
        if (range.x == range.y) {
          next = atomicAdd(a.fused.ticket, 1);
          continue;
        }
        const int stat_bytes = 2 * kRows * 4 + a.unit_tokens * int(sizeof(Bounds));
        mbar_wait(kv_empty, parity);
        parity ^= 1;
        *item_now = item;
        mbar_expect(kv_full, 2 * C::kTile);
        for (int c = 0; c < D / 64; ++c) {
          tma_load(pool + c * C::kChunk, map_k, kv_full, 64 * c, tile * C::kKeys, g);
          tma_load(v_tile + c * C::kChunk, map_v, kv_full, 64 * c, tile * C::kKeys, g);
        }
#pragma unroll 1
        for (int i = 0; i < range.y - range.x; ++i) {
          const int token = unit_at(range, i, item >= a.fused.upwards) * a.unit_tokens;
          if (i == max(0, range.y - range.x - 2)) {  // asked for while there is still something to do
            next = atomicAdd(a.fused.ticket, 1);
            mbar_arrive(late);
          }
#pragma unroll 1
          for (int head = g * a.group; head < (g + 1) * a.group; head += a.unit_heads, ring.next()) {
            const int s = ring.stage;
            const uint32_t q = stages + s * C::kStage, stat = pool + C::kStats + s * C::kStat;
            mbar_wait(empty(s), ring.parity ^ 1);
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
      mbar_wait(kv_empty, parity);
      *item_now = -1;
      mbar_arrive(kv_full);
    } else if (warp == 1) {
#pragma unroll 1
      for (uint32_t parity = 0;; parity ^= 1) {
        mbar_wait(kv_full, parity);
        const int item = *item_now, tile = item / a.kv_heads, g = item % a.kv_heads;
        __syncwarp();
        if (item < 0) break;
        mbar_wait(late, parity);  // not before: L2 would have lost them again
        if (lane == 0) mbar_arrive(kv_empty);
        constexpr int kLine = 32;  // floats
        const int first = tile * C::kKeys, keys = min(C::kKeys, a.context - first);
        for (int n = lane; n < keys * (D / kLine); n += 32) {
          const int key = first + n / (D / kLine), column = g * D + n % (D / kLine) * kLine;
          prefetch_l2(a.dk.row(key) + column), prefetch_l2(a.dv.row(key) + column);
        }
      }
    } else if (warp >= 2 && lane == 0) {
      const int b = warp - 2;  // of the two buffers
      const uint32_t sum = pool + C::kSums + b * C::kSum;
      uint32_t parity = 0;
      int step = b;  // of the item: this buffer's next
#pragma unroll 1
      for (uint32_t item_parity = 0;; item_parity ^= 1) {
        mbar_wait(kv_full, item_parity);
        const int item = *item_now, tile = item / a.kv_heads, g = item % a.kv_heads;
        if (item < 0) break;
        mbar_arrive(kv_empty);
        const int2 range = a.range[tile];
        const int steps = (range.y - range.x) * a.subs;
#pragma unroll 1
        for (; step < steps; step += 2, parity ^= 1) {
          const int unit = unit_at(range, step / a.subs, item >= a.fused.upwards), sub = step % a.subs;
          const int64_t at = (int64_t(unit) * a.kv_heads + g) * a.subs + sub;
          const unsigned rank = tile - unit_span(a.rows, unit, a.unit_tokens).low / C::kKeys;
          float* const to = a.fused.sums + at * kFusedSum;
          mbar_wait(sum_full(b), parity);
          if (rank == 0) {
            bulk_store(to, sum, C::kSum);
          } else {
            wait_turn(a.fused.turns + at, rank);
            bulk_add(to, sum, C::kSum);
          }
          bulk_commit();
          bulk_wait();
          pass_turn(a.fused.turns + at, rank + 1);
          mbar_arrive(sum_empty(b));
        }
        step -= steps;
      }
    }
  } else {
    registers_up<240>();
    const int w = wg - 1, tid = threadIdx.x % 128, row = 16 * warp + lane / 4, col = 2 * (lane & 3);
    const float c = a.scale * kLog2e;
    const uint64_t rows_k = k_major(stages),
                   rows_mn = mn_major(stages, C::kQChunk);  // queries; dout is kQ further
    const uint64_t k_desc = k_major(pool + w * 8192), v_desc = k_desc + step(C::kTile),
                   k_mn = mn_major(pool + w * C::kChunk, C::kChunk),
                   ds_mn = mn_major(pool + C::kScores, C::kScore);
    const int key_row = 64 * w + 16 * warp + (lane & 15);
    const uint32_t ds_at = pool + C::kScores + key_row * 128;
    Ring<2> ring, out;
    auto send = [&](const float(&dq)[32]) {
      mbar_wait(sum_empty(out.stage), out.parity ^ 1);
      float4* const to =
          reinterpret_cast<float4*>(pool_at + C::kSums + out.stage * C::kSum + w * (C::kSum / 2)) + tid;
#pragma unroll
      for (int u = 0; u < 8; ++u) to[u * 128] = {dq[4 * u], dq[4 * u + 1], dq[4 * u + 2], dq[4 * u + 3]};
      fence_async_shared();
      __syncwarp();
      if (lane == 0) mbar_arrive(sum_full(out.stage));
      out.next();
    };
#pragma unroll 1
    for (uint32_t parity = 0;; parity ^= 1) {
      mbar_wait(kv_full, parity);
      const int item = uniform(*item_now), tile = item / a.kv_heads, g = item % a.kv_heads;
      if (item < 0) break;
      const int steps = uniform((a.range[tile].y - a.range[tile].x) * a.subs);
      const int first = tile * C::kKeys + 64 * w;  // key of this warpgroup
      float dk[D / 2], dv[D / 2], s[32], dp[32];
      uint32_t p[16], ds[16];
#pragma unroll
      for (int e = 0; e < D / 2; ++e) dk[e] = dv[e] = 0;
#pragma unroll 1
      for (int i = 0; i < steps; ++i, ring.next()) {
        const int st = ring.stage;
        const uint64_t off = step(st * C::kStage);
        const uint8_t* const stat = pool_at + C::kStats + st * C::kStat;
        mbar_wait(full(st), ring.parity);
        pin(s);
        wgmma_fence();
#pragma unroll
        for (int t = 0; t < D / 16; ++t)
          WgmmaSS<64, 0, 0>::call(s, k_desc + k_step(t, C::kChunk), rows_k + off + k_step(t, C::kQChunk),
                                  t > 0);
        wgmma_commit();
        wgmma_wait<1>();  // dK of the step before
        pin(dk);
        if (i > 0 && lane == 0) mbar_arrive(empty(st ^ 1));
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
        wgmma_wait<0>();  // dV too: with it over this, P and dS would want more registers than there are
        pin(dv);
        pin(dp);
        score_gradients(ds, s, dp, delta);
        // Two buffers: both warpgroups have waited above for the dQ that read this one two steps ago, and for
        // each other at the barrier below.
#pragma unroll
        for (int j = 0; j < 4; ++j)
          stmatrix(ds_at + st * C::kScore + (((2 * j + (lane >> 4)) ^ (key_row & 7)) << 4), ds[4 * j],
                   ds[4 * j + 1], ds[4 * j + 2], ds[4 * j + 3]);
        fence_async_shared();
        bar_sync(1, 256);
        float dq[32];
        pin(ds), forget(dq);
        wgmma_fence();
#pragma unroll
        for (int t = 0; t < C::kKeys / 16; ++t)
          WgmmaSS<64, 1, 1>::call(dq, ds_mn + step(st * C::kScore + t * 2048), k_mn + step(t * 2048), t > 0);
        wgmma_commit();
#pragma unroll
        for (int t = 0; t < 4; ++t) WgmmaRS<D, 1>::call(dk, ds + 4 * t, rows_mn + off + step(t * 2048), 1);
        wgmma_commit();
        wgmma_wait<1>();  // dQ
        pin(dq);
        send(dq);
      }
      wgmma_wait<0>();
      pin(dk), pin(dv);
      if (lane == 0) mbar_arrive(empty(ring.stage ^ 1));
      if (lane == 0) mbar_arrive(kv_empty);
      add_rows(a.dk, first + row, g * D + col, dk, a.scale);
      add_rows(a.dv, first + row, g * D + col, dv, 1.f);
    }
  }
#endif
}

}  // namespace

namespace hopper {

void launch_fused(const BlockAttentionBwd<Bf16>& a, const BwdArgs& args, CudaStream stream) {
  using C = FusedTile;
  check(cudaFuncSetAttribute(fused_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kBytes));
  const int tokens = args.unit_tokens, heads = args.unit_heads;
  fused_kernel<<<args.context_grid, kThreads, C::kBytes, stream>>>(
      head_map(a.q, C::D, tokens, heads), head_map(a.dout, C::D, tokens, heads),
      head_map(a.k_context, C::D, C::kKeys, 1), head_map(a.v_context, C::D, C::kKeys, 1),
      row_map(args.lse2, args.heads, a.q.rows, args.stride, tokens, heads),
      row_map(args.delta, args.heads, a.q.rows, args.stride, tokens, heads), args);
  check(cudaGetLastError());
}

}  // namespace hopper
}  // namespace slip
