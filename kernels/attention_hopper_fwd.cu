// Block-diffusion attention forward on sm_90a.
//
// An item is three neighbouring units, which read nearly the same keys, once. Warpgroup 0 loads: warp 0 the
// key and value tiles that all three read, warp 1 the queries, warp 2 the keys and values of the units' own
// blocks. The other warpgroups compute a unit each, from the tile where its context ends to the one where it
// begins:
//   own scores and those of the first tile together, one softmax over both;
//   then, tile by tile, the scores of tile n are issued before the values of tile n - 1, whose product runs
//   behind the softmax of n; the last values and the own block's end an item, and the first scores of the
//   next run while the output is written.
// They take turns at issuing. Three of 64 rows need a third less of K and V from L2 than two, and leave 160
// registers a thread.
//
// The own block is always visible, so every row has a finite maximum from the start: no test for empty rows.
#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/attention_hopper_fwd.cuh"
#include "kernels/attention_hopper_softmax.cuh"
#include "kernels/device/tma.cuh"
#include "kernels/device/wgmma.cuh"

namespace slip {
namespace {
using namespace hopper;

template <int D, int TB>
__global__ void __launch_bounds__(FwdTile<D, TB>::kThreads, 1)
    block_fwd_kernel(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                     const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_kb,
                     const __grid_constant__ TensorMap map_vb, const __grid_constant__ TensorMap map_out,
                     const __grid_constant__ FwdArgs a) {
#if SLIP_HOPPER_CODE
  using C = FwdTile<D, TB>;
  constexpr int BN = C::kKeys, kStages = C::kStages, kBuffers = C::kBuffers;
  constexpr int kGroups = C::kGroups, kWarps = 4 * kGroups;
  extern __shared__ uint8_t pool_memory[];
  const uint32_t pool = (shared_address(pool_memory) + 1023) & ~1023u;
  uint8_t* const pool_at = pool_memory + (pool - shared_address(pool_memory));
  const uint32_t k_tiles = pool, v_tiles = pool + kStages * C::kTile, bars = pool + C::kBars;
  const uint32_t own_k = pool + C::kOwns, own_v = own_k + C::kOwn;
  FwdNote* const notes = reinterpret_cast<FwdNote*>(pool_at + C::kNotes);
  auto query_at = [&](int buffer, int w) { return pool + C::kQueries + (kGroups * buffer + w) * C::kQ; };
  auto k_full = [&](int s) { return bars + 8 * s; };
  auto k_empty = [&](int s) { return bars + 8 * (kStages + s); };
  auto v_full = [&](int s) { return bars + 8 * (2 * kStages + s); };
  auto v_empty = [&](int s) { return bars + 8 * (3 * kStages + s); };
  auto q_full = [&](int buffer, int w) { return bars + 8 * (4 * kStages + kGroups * buffer + w); };
  auto q_empty = [&](int buffer, int w) { return q_full(buffer, w) + 8 * kGroups * kBuffers; };
  const uint32_t own_k_full = bars + 8 * (C::kBarCount - 4), own_k_empty = own_k_full + 8,
                 own_v_full = own_k_full + 16, own_v_empty = own_k_full + 24;

  const int wg = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbar_init(k_full(s), 1), mbar_init(k_empty(s), kWarps);
      mbar_init(v_full(s), 1), mbar_init(v_empty(s), kWarps);
    }
    for (int i = 0; i < kGroups * kBuffers; ++i) mbar_init(q_full(0, i), 1), mbar_init(q_empty(0, i), 1);
    mbar_init(own_k_full, 1), mbar_init(own_k_empty, kWarps);
    mbar_init(own_v_full, 1), mbar_init(own_v_empty, kWarps);
    mbar_init_fence();
    prefetch_maps(map_q, map_k, map_v, map_kb, map_vb, map_out);
  }
  const int columns = a.heads / C::kHeads;  // units side by side
  const Deal work = deal(a.items, a.items, columns, reinterpret_cast<int*>(pool_at + C::kList),
                         reinterpret_cast<int*>(pool_at),
                         [&](int i) { return stream_tiles<BN>(a.rows, kGroups * i, kGroups, TB); });
  __syncthreads();
  const int rounds = uniform(work.rounds);

  if (wg == 0) {
    registers_down<32>();
    if (warp == 0) {
      Ring<kStages> ring;
#pragma unroll 1
      for (int i = 0; i < rounds; ++i) {
        const int item = work.item(i), head = item % columns * C::kHeads / a.group;
        const KeyStream x = plan_stream<BN>(a.rows, kGroups * (item / columns), kGroups, TB);
#pragma unroll 1
        for (int u = 0; u < kGroups; ++u) {
          const int tiles = __shfl_sync(~0u, x.run, u), first = __shfl_sync(~0u, x.run_key, u);
          if (lane > 0) continue;
#pragma unroll 1
          for (int t = tiles - 1; t >= 0; --t, ring.next()) {
            const int s = ring.stage, key = first + t * BN;
            mbar_wait(k_empty(s), ring.parity ^ 1);
            mbar_expect(k_full(s), C::kTile);
            for (int c = 0; c < D / 64; ++c)
              tma_load(k_tiles + s * C::kTile + c * C::kTileChunk, map_k, k_full(s), 64 * c, key, head);
            mbar_wait(v_empty(s), ring.parity ^ 1);
            mbar_expect(v_full(s), C::kTile);
            for (int c = 0; c < D / 64; ++c)
              tma_load(v_tiles + s * C::kTile + c * C::kTileChunk, map_v, v_full(s), 64 * c, key, head);
          }
        }
      }
    } else if (warp == 1) {
      Ring<kBuffers> ring;
#pragma unroll 1
      for (int i = 0; i < rounds; ++i, ring.next()) {
        const int item = work.item(i), first = kGroups * (item / columns);
        const KeyStream x = plan_stream<BN>(a.rows, first, kGroups, TB);
        if (lane < kGroups) {  // a lane for each unit
          const int token = (first + lane) * TB, head = item % columns * C::kHeads;
          const uint32_t q = query_at(ring.stage, lane), full = q_full(ring.stage, lane);
          mbar_wait(q_empty(ring.stage, lane), ring.parity ^ 1);
          notes[kGroups * ring.stage + lane] = {
              x.skip,          x.count, x.total - x.skip - x.count, x.key, x.span.high, x.span.max_low,
              x.span.min_high, 0};
          mbar_expect(full, C::kQ);
          for (int c = 0; c < D / 64; ++c) tma_load(q + c * C::kQChunk, map_q, full, 64 * c, token, head);
        }
        __syncwarp();
      }
    } else if (warp == 2 && lane == 0) {
#pragma unroll 1
      for (int i = 0; i < rounds; ++i) {
        const int item = work.item(i), token = kGroups * (item / columns) * TB,
                  head = item % columns * C::kHeads / a.group;
        mbar_wait(own_k_empty, (i & 1) ^ 1);
        mbar_expect(own_k_full, C::kOwn);
        for (int c = 0; c < D / 64; ++c)
          tma_load(own_k + c * C::kOwnChunk, map_kb, own_k_full, 64 * c, token, head);
        mbar_wait(own_v_empty, (i & 1) ^ 1);
        mbar_expect(own_v_full, C::kOwn);
        for (int c = 0; c < D / 64; ++c)
          tma_load(own_v + c * C::kOwnChunk, map_vb, own_v_full, 64 * c, token, head);
      }
    }
  } else {
    registers_up<C::kRegisters>();
    const int w = wg - 1, row = 16 * warp + lane / 4, col = 2 * (lane & 3);
    const uint64_t k_desc = k_major(k_tiles), v_desc = mn_major(v_tiles, C::kTileChunk);
    const uint64_t own_k_desc = k_major(own_k + w * TB * 128),
                   own_v_desc = mn_major(own_v + w * TB * 128, C::kOwnChunk);
    float o[D / 2], s[BN / 2], b[TB / 2];  // output, scores of a tile, scores of the own block
    uint32_t p[BN / 4], r[TB / 4];         // their exponentials in bf16
    Softmax y;
    y.c = a.scale * kLog2e;
    Ring<kStages> ring;
    Ring<kBuffers> buffers;
    // The warpgroups take turns at every tile of the stream: left alone they would all be at their products
    // at once, which the tensor cores interleave, and then all at their softmax.
    auto turn = [&] { bar_sync(4 + w, 256); };
    auto next_turn = [&] { bar_arrive(w == kGroups - 1 ? 4 : 5 + w, 256); };
    if (w == kGroups - 1) next_turn();
    auto pass = [&](int tiles) {  // that only others read
      for (; tiles > 0; --tiles, ring.next()) {
        turn(), next_turn();
        mbar_wait(k_full(ring.stage), ring.parity);
        mbar_wait(v_full(ring.stage), ring.parity);
        if (lane == 0) mbar_arrive(k_empty(ring.stage)), mbar_arrive(v_empty(ring.stage));
      }
    };
    auto issue_scores = [&](uint64_t q_desc) {
      const uint64_t dk = k_desc + step(ring.stage * C::kTile);
#pragma unroll
      for (int t = 0; t < D / 16; ++t)
        WgmmaSS<BN, 0, 0>::call(s, q_desc + k_step(t, C::kQChunk), dk + k_step(t, C::kTileChunk), t > 0);
      wgmma_commit();
    };
    auto issue_values = [&](int stage, int accumulate) {
      const uint64_t dv = v_desc + step(stage * C::kTile);
#pragma unroll
      for (int t = 0; t < BN / 16; ++t)
        WgmmaRS<D, 1>::call(o, p + 4 * t, dv + step(t * 2048), t > 0 || accumulate);
    };
    // The first products of item i: own scores, and those of its first tile. Without a tile, or without an
    // item, the product runs all the same and nobody looks at it: a branch here would make ptxas serialise
    // everything.
    auto start = [&](int i) {
      const uint64_t q_desc = k_major(query_at(buffers.stage, w));
      int count = 0;
      if (i < rounds) {
        mbar_wait(q_full(buffers.stage, w), buffers.parity);
        const FwdNote& x = notes[kGroups * buffers.stage + w];
        count = uniform(x.count);
        pass(uniform(x.skip));
        mbar_wait(own_k_full, i & 1);
        if (count > 0) {
          mbar_wait(k_full(ring.stage), ring.parity);
          turn();
        }
      }
      pin(b), pin(s);
      wgmma_fence();
#pragma unroll
      for (int t = 0; t < D / 16; ++t)
        WgmmaSS<TB, 0, 0>::call(b, q_desc + k_step(t, C::kQChunk), own_k_desc + k_step(t, C::kOwnChunk),
                                t > 0);
      issue_scores(q_desc);
      if (count > 0) next_turn();
      return count;
    };
    // Scores of the N keys from `first` on that a row does not see.
    auto mask = [&]<int N>(std::integral_constant<int, N>, int token, int first) {
      const FwdNote& x = notes[kGroups * buffers.stage + w];
      if (first >= x.max_low && first + N <= x.min_high) return;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Bounds y = context_bounds(a.rows, token + (row + 8 * h) % TB);
#pragma unroll
        for (int e = 0; e < N / 2; ++e) {
          const int k = first + 8 * (e >> 2) + col + (e & 1);
          if (((e >> 1) & 1) == h && unsigned(k - y.low) >= unsigned(y.high - y.low)) s[e] = -INFINITY;
        }
      }
    };

    int count = start(0);
#pragma unroll 1
    for (int i = 0; i < rounds; ++i) {
      const int item = work.item(i), token = (kGroups * (item / columns) + w) * TB,
                head = item % columns * C::kHeads;
      const uint32_t q = query_at(buffers.stage, w);
      const FwdNote& x = notes[kGroups * buffers.stage + w];
      int first = uniform(x.key);
      wgmma_wait<0>();
      pin(b), pin(s);
      if (lane == 0) {
        mbar_arrive(own_k_empty);
        if (count > 0) mbar_arrive(k_empty(ring.stage));
      }
      if (a.causal || TB > (1 << a.rows.log2_block)) {
#pragma unroll
        for (int e = 0; e < TB / 2; ++e) {
          const int j = (row + 8 * ((e >> 1) & 1)) % TB, k = 8 * (e >> 2) + col + (e & 1);
          if ((j ^ k) >> a.rows.log2_block || (a.causal && k > j)) b[e] = -INFINITY;
        }
      }
      // The own block's part of the sums waits in b until all maxima are known.
      auto first_tile = [&]<int N>(std::integral_constant<int, N> n) {
        y.m[0] = y.m[1] = -INFINITY, y.l[0] = y.l[1] = 0;
        row_maximum<TB / 2>(y.m, b);
        if (N > 0) {
          mask(n, token, first);
          row_maximum<N / 2>(y.m, s);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) y.m[h] = quad_max(y.m[h]);
        exponentials<TB / 2>(y, b);
        if (N > 0) {
          exponentials<N / 2>(y, s);
#pragma unroll
          for (int e = 0; e < BN / 4; ++e) p[e] = e < N / 4 ? pack_bf16(s[2 * e], s[2 * e + 1]) : 0;
        }
      };
      const int left = count > 0 ? uniform(x.high) - first : 0;
      if (left > 64)
        first_tile(std::integral_constant<int, BN>{});
      else if (left > 32)
        first_tile(std::integral_constant<int, 64>{});
      else if (left > 0)
        first_tile(std::integral_constant<int, 32>{});
      else
        first_tile(std::integral_constant<int, 0>{});
      if (i > 0 && warp == 0 && lane == 0) {  // the output before is out: its buffer is free
        bulk_wait_read();
        mbar_arrive(q_empty(buffers.stage ^ 1, w));
      }
      Ring<kStages> before = ring;
#pragma unroll 1
      for (int n = 1; n < count; ++n) {
        ring.next();
        first -= BN;
        mbar_wait(v_full(before.stage), before.parity);
        mbar_wait(k_full(ring.stage), ring.parity);
        turn();
        pin(s), pin(p), pin(o);
        wgmma_fence();
        issue_scores(k_major(q));
        issue_values(before.stage, n > 1);
        wgmma_commit();
        next_turn();
        wgmma_wait<1>();
        pin(s);
        if (lane == 0) mbar_arrive(k_empty(ring.stage));
        mask(std::integral_constant<int, BN>{}, token, first);
        float f[2];
        const bool moved = follow_maximum(y, s, f);
        exponentials<BN / 2>(y, s);
        wgmma_wait<0>();
        pin(o);
        if (lane == 0) mbar_arrive(v_empty(before.stage));
        if (moved) {
#pragma unroll
          for (int e = 0; e < D / 2; ++e) o[e] *= f[(e >> 1) & 1];
#pragma unroll
          for (int e = 0; e < TB / 2; ++e) b[e] *= f[(e >> 1) & 1];
        }
#pragma unroll
        for (int e = 0; e < BN / 4; ++e) p[e] = pack_bf16(s[2 * e], s[2 * e + 1]);
        before = ring;
      }
#pragma unroll
      for (int e = 0; e < TB / 4; ++e) r[e] = pack_bf16(b[2 * e], b[2 * e + 1]);
      mbar_wait(own_v_full, i & 1);
      if (count > 0) mbar_wait(v_full(before.stage), before.parity);
      pin(p), pin(r), pin(o);
      wgmma_fence();
      if (count > 0) issue_values(before.stage, count > 1);
#pragma unroll
      for (int t = 0; t < TB / 16; ++t)
        WgmmaRS<D, 1>::call(o, r + 4 * t, own_v_desc + step(t * 2048), t > 0 || count > 0);
      wgmma_commit();
      wgmma_wait<0>();
      pin(o);
      if (lane == 0) {
        mbar_arrive(own_v_empty);
        if (count > 0) mbar_arrive(v_empty(before.stage));
      }
      if (count > 0) ring.next();
      pass(uniform(x.tail));
      buffers.next();
      count = start(i + 1);

      float f[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        y.l[h] += __shfl_xor_sync(~0u, y.l[h], 1);
        y.l[h] += __shfl_xor_sync(~0u, y.l[h], 2);
        f[h] = 1.f / y.l[h];
        const int t = token + (row + 8 * h) % TB;
        if ((lane & 3) == 0 && t < a.rows.tokens())
          a.lse[int64_t(t) * a.heads + head + row / TB] = y.m[h] * a.scale + logf(y.l[h]);
      }
      bar_sync(1 + w,
               128);  // all four warps have stopped reading the queries: the output goes out through them
      store_tile(q, C::kQChunk, o, f[0], f[1]);
      fence_async_shared();
      bar_sync(1 + w, 128);
      if (warp == 0 && lane == 0) {
        if (token < a.rows.tokens()) {
          for (int c = 0; c < D / 64; ++c) tma_store(map_out, q + c * C::kQChunk, 64 * c, token, head);
        }
        bulk_commit();
      }
    }
    wgmma_wait<0>();
    if (warp == 0 && lane == 0) bulk_wait();
  }
#endif
}

template <int D, int TB> void launch(const BlockAttentionFwd<Bf16>& a, CudaStream stream) {
  using C = FwdTile<D, TB>;
  const AttentionShape& s = a.shape;
  const int blocks = static_cast<int>(a.q.rows / s.block), units = (blocks * s.block + TB - 1) / TB,
            items = (units + C::kGroups - 1) / C::kGroups;
  const int grid = std::min(items * (s.heads / C::kHeads), device_limits().multiprocessors);
  FwdArgs args{
      .rows = {a.anchor, a.lo, blocks, std::countr_zero(unsigned(s.block)), s.window ? s.window : INT_MAX},
      .lse = a.lse,
      .items = items,
      .heads = s.heads,
      .group = s.heads / s.kv_heads,
      .causal = s.causal,
      .scale = s.scale};
  check(
      cudaFuncSetAttribute(block_fwd_kernel<D, TB>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kBytes));
  block_fwd_kernel<D, TB><<<grid, C::kThreads, C::kBytes, stream>>>(
      head_map(a.q, D, TB, C::kHeads), head_map(some(a.k_context, a.k_block), D, C::kKeys, 1),
      head_map(some(a.v_context, a.v_block), D, C::kKeys, 1), head_map(a.k_block, D, C::kOwnKeys, 1),
      head_map(a.v_block, D, C::kOwnKeys, 1), head_map(a.out, D, TB, C::kHeads), args);
  check(cudaGetLastError());
}

}  // namespace

void block_attention_fwd_hopper(const BlockAttentionFwd<Bf16>& a, CudaStream stream) {
  require(hopper_supports(a), "block_attention_fwd_hopper: device, shape, strides or alignment do not fit");
  if (a.q.rows == 0) return;
  const int tokens = unit_shape(a.shape).tokens;
  if (a.shape.head_dim == 128) {
    if (tokens == 16) return launch<128, 16>(a, stream);
    if (tokens == 32) return launch<128, 32>(a, stream);
    return launch<128, 64>(a, stream);
  }
  if (tokens == 16) return launch<64, 16>(a, stream);
  if (tokens == 32) return launch<64, 32>(a, stream);
  return launch<64, 64>(a, stream);
}

}  // namespace slip
