// Block-diffusion attention forward on sm_90a.
//
// Warpgroup 0 loads: warp 0 the key and value tiles that both units of a pair read, warp 1 each unit's
// queries and its own blocks' keys and values. Warpgroups 1 and 2 compute a unit each:
//   own scores and those of the first key tile together, one softmax over both;
//   then, tile by tile, the scores of tile n are issued before the values of tile n - 1, whose product runs
//   behind the softmax of n; the last values' product is followed at once by the first scores of the next
//   item, which run while the output of this one is written.
// The own block is always visible, so every row has a finite maximum from the start: no test for empty rows.
#include <algorithm>
#include <bit>

#include "kernels/attention_hopper.cuh"
#include "kernels/device/tma.cuh"
#include "kernels/device/wgmma.cuh"

namespace slip {
namespace {
using namespace hopper;

struct FwdArgs {
  DraftRows rows;
  float* lse;  // (tokens, heads)
  int pairs, heads, group;
  bool causal;
  float scale;
};

template <int D, int TB> struct FwdTile {
  static constexpr int kKeys = D == 128 && TB > 16 ? 96 : TB == 64 ? 96 : 128;
  static constexpr int kStages = D == 128 ? 2 : 3;
  static constexpr int kBuffers =
      D == 128 && TB == 64 ? 1 : 2;  // of queries and own keys, for each warpgroup
  static constexpr int kHeads = kRows / TB;
  static constexpr int kTile = kKeys * D * 2, kTileChunk = kKeys * 128;
  static constexpr int kQ = kRows * D * 2, kQChunk = kRows * 128;
  static constexpr int kOwn = TB * D * 2, kOwnChunk = TB * 128;
  static constexpr int kUnit = kQ + 2 * kOwn;
  // Shared memory: K tiles, V tiles, units, barriers, notes to the warpgroups, list of work.
  static constexpr int kUnits = 2 * kStages * kTile;
  static constexpr int kBars = kUnits + 2 * kBuffers * kUnit;
  static constexpr int kNotes = kBars + 256, kList = kNotes + 256;
  static constexpr int kBytes = kList + kListed * 4 + 1024;
  static_assert(kBytes <= kMaxSharedBytes && 8 * (4 * kStages + 4 * kBuffers) <= 256 &&
                kUnits >= kSorted * 4);
};

template <int D, int TB>
__global__ void __launch_bounds__(kThreads, 1)
    block_fwd_kernel(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                     const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_kb,
                     const __grid_constant__ TensorMap map_vb, const __grid_constant__ TensorMap map_out,
                     const __grid_constant__ FwdArgs a) {
#if SLIP_HOPPER_CODE
  using C = FwdTile<D, TB>;
  constexpr int BN = C::kKeys, kStages = C::kStages, kBuffers = C::kBuffers;
  extern __shared__ uint8_t pool_memory[];
  const uint32_t pool = (shared_address(pool_memory) + 1023) & ~1023u;
  uint8_t* const pool_at = pool_memory + (pool - shared_address(pool_memory));
  const uint32_t k_tiles = pool, v_tiles = pool + kStages * C::kTile, bars = pool + C::kBars;
  Note* const notes = reinterpret_cast<Note*>(pool_at + C::kNotes);
  auto unit_at = [&](int buffer, int w) { return pool + C::kUnits + (2 * buffer + w) * C::kUnit; };
  auto k_full = [&](int s) { return bars + 8 * s; };
  auto k_empty = [&](int s) { return bars + 8 * (kStages + s); };
  auto v_full = [&](int s) { return bars + 8 * (2 * kStages + s); };
  auto v_empty = [&](int s) { return bars + 8 * (3 * kStages + s); };
  auto q_full = [&](int buffer, int w) { return bars + 8 * (4 * kStages + 2 * buffer + w); };
  auto q_empty = [&](int buffer, int w) { return bars + 8 * (4 * kStages + 2 * kBuffers + 2 * buffer + w); };

  const int wg = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbar_init(k_full(s), 1), mbar_init(k_empty(s), 8);
      mbar_init(v_full(s), 1), mbar_init(v_empty(s), 8);
    }
    for (int i = 0; i < 2 * kBuffers; ++i) mbar_init(q_full(0, i), 1), mbar_init(q_empty(0, i), 1);
    mbar_init_fence();
    prefetch_map(map_q), prefetch_map(map_k), prefetch_map(map_v);
    prefetch_map(map_kb), prefetch_map(map_vb), prefetch_map(map_out);
  }
  auto plan_of = [&](int pair) {
    return plan_pair<BN>(unit_span(a.rows, 2 * pair, TB), unit_span(a.rows, 2 * pair + 1, TB));
  };
  const int columns = a.heads / C::kHeads;  // units side by side
  const Deal work = deal(a.pairs, a.pairs, columns, reinterpret_cast<int*>(pool_at + C::kList),
                         reinterpret_cast<int*>(pool_at), [&](int pair) { return plan_of(pair).total; });
  __syncthreads();
  const int rounds = uniform(work.rounds);

  if (wg == 0) {
    registers_down<40>();
    if (warp == 0 && lane == 0) {
      Ring<kStages> ring;
#pragma unroll 1
      for (int i = 0; i < rounds; ++i) {
        const int item = work.item(i), head = item % columns * C::kHeads / a.group;
        const PairPlan plan = plan_of(item / columns);
#pragma unroll 1
        for (int t = 0; t < plan.total; ++t, ring.next()) {
          const int s = ring.stage, key = tile_key<BN>(plan, t);
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
    } else if (warp == 1 && lane == 0) {
      Ring<kBuffers> ring;
#pragma unroll 1
      for (int i = 0; i < rounds; ++i, ring.next()) {
        const int item = work.item(i), head = item % columns * C::kHeads, pair = item / columns;
        const PairPlan plan = plan_of(pair);
#pragma unroll 1
        for (int w = 0; w < 2; ++w) {
          const int buffer = ring.stage, token = (2 * pair + w) * TB;
          const Span span = unit_span(a.rows, 2 * pair + w, TB);
          const int skip = w ? plan.skip[1] : plan.skip[0], count = w ? plan.count[1] : plan.count[0];
          const uint32_t q = unit_at(buffer, w), full = q_full(buffer, w);
          mbar_wait(q_empty(buffer, w), ring.parity ^ 1);
          notes[2 * buffer + w] = {token,
                                   head,
                                   skip,
                                   count,
                                   plan.total - skip - count,
                                   w ? plan.key[1] : plan.key[0],
                                   span.max_low,
                                   span.min_high};
          mbar_expect(full, C::kUnit);
          for (int c = 0; c < D / 64; ++c) {
            tma_load(q + c * C::kQChunk, map_q, full, 64 * c, token, head);
            tma_load(q + C::kQ + c * C::kOwnChunk, map_kb, full, 64 * c, token, head / a.group);
            tma_load(q + C::kQ + C::kOwn + c * C::kOwnChunk, map_vb, full, 64 * c, token, head / a.group);
          }
        }
      }
    }
  } else {
    registers_up<232>();
    const int w = wg - 1, row = 16 * warp + lane / 4, col = 2 * (lane & 3);
    const uint64_t k_desc = k_major(k_tiles), v_desc = mn_major(v_tiles, C::kTileChunk);
    const float c = a.scale * kLog2e;
    float o[D / 2], s[BN / 2], b[TB / 2];  // output, scores of a tile, scores of the own block
    uint32_t p[BN / 4], r[TB / 4];         // their exponentials in bf16
    float m[2]{}, l[2], f[2];              // of this thread's two rows: maximum, sum of its columns, factor
    Ring<kStages> ring;                    // tile whose scores come next or are under way
    Ring<kBuffers> units;
    int low[2], seen[2];  // keys low <= k < low + seen

    auto read_note = [&]() -> Note {
      mbar_wait(q_full(units.stage, w), units.parity);
      const Note& n = notes[2 * units.stage + w];
      return {uniform(n.token), uniform(n.head), uniform(n.skip),    uniform(n.count),
              uniform(n.tail),  uniform(n.key),  uniform(n.max_low), uniform(n.min_high)};
    };
    auto pass = [&](int tiles) {  // that only the other warpgroup reads
      for (; tiles > 0; --tiles, ring.next()) {
        mbar_wait(k_full(ring.stage), ring.parity);
        mbar_wait(v_full(ring.stage), ring.parity);
        if (lane == 0) mbar_arrive(k_empty(ring.stage)), mbar_arrive(v_empty(ring.stage));
      }
    };
    auto issue_scores = [&](uint32_t q) {
      const uint64_t dq = k_major(q), dk = k_desc + step(ring.stage * C::kTile);
#pragma unroll
      for (int t = 0; t < D / 16; ++t)
        WgmmaSS<BN, 0, 0>::call(s, dq + k_step(t, C::kQChunk), dk + k_step(t, C::kTileChunk), t > 0);
    };
    auto issue_values = [&](int stage) {
      const uint64_t dv = v_desc + step(stage * C::kTile);
#pragma unroll
      for (int t = 0; t < BN / 16; ++t) WgmmaRS<D, 1>::call(o, p + 4 * t, dv + step(t * 2048), 1);
      wgmma_commit();
    };
    // The first products of an item: own scores, and those of its first tile. Without a tile, or without an
    // item, the product runs all the same and nobody looks at it: a branch here would make ptxas serialise
    // everything.
    auto start = [&](int count) {
      const uint32_t q = unit_at(units.stage, w);
      const uint64_t dq = k_major(q), dk = k_major(q + C::kQ);
      pin(b), pin(s);
      wgmma_fence();
#pragma unroll
      for (int t = 0; t < D / 16; ++t)
        WgmmaSS<TB, 0, 0>::call(b, dq + k_step(t, C::kQChunk), dk + k_step(t, C::kOwnChunk), t > 0);
      if (count > 0) mbar_wait(k_full(ring.stage), ring.parity);
      issue_scores(q);
      wgmma_commit();
    };
    auto mask = [&](const Note& x, int n) {
      const int first = x.key + n * BN;
      if (first < x.max_low || first + BN > x.min_high) {
#pragma unroll
        for (int e = 0; e < BN / 2; ++e) {
          const int h = (e >> 1) & 1;
          const unsigned k = first + 8 * (e >> 2) + col + (e & 1) - low[h];
          if (k >= unsigned(seen[h])) s[e] = -INFINITY;
        }
      }
    };
    auto quad_max = [](float x) {
      x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
      return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
    };
    auto exponentials = [&](auto& x) {
      const float mc[2] = {m[0] * c, m[1] * c};
#pragma unroll
      for (int e = 0; e < int(sizeof(x) / sizeof(float)); ++e) {
        x[e] = exp2_ftz(fmaf(x[e], c, -mc[(e >> 1) & 1]));
        l[(e >> 1) & 1] += x[e];
      }
    };
    // The old maximum stays while no row exceeds it by more than 8 in log2 units: sums grow at most 256-fold,
    // and most tiles save the rescaling of the output. True when it has to be done.
    auto softmax = [&]() -> bool {
      float x[2] = {s[0], s[2]};
#pragma unroll
      for (int e = 0; e < BN / 2; ++e) x[(e >> 1) & 1] = fmaxf(x[(e >> 1) & 1], s[e]);
#pragma unroll
      for (int h = 0; h < 2; ++h) x[h] = fmaxf(quad_max(x[h]), m[h]);
      const bool move = __any_sync(~0u, (x[0] - m[0]) * c > 8.f || (x[1] - m[1]) * c > 8.f);
      if (move) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          f[h] = exp2_ftz((m[h] - x[h]) * c);
          m[h] = x[h];
          l[h] *= f[h];
        }
      }
      exponentials(s);
      return move;
    };
    auto pack = [](auto& to, const auto& from) {
#pragma unroll
      for (int e = 0; e < int(sizeof(to) / 4); ++e) to[e] = pack_bf16(from[2 * e], from[2 * e + 1]);
    };

    Note x{};
    if (rounds > 0) {
      x = read_note();
      pass(x.skip);
      start(x.count);
    }
#pragma unroll 1
    for (int i = 0; i < rounds; ++i) {
      const uint32_t q = unit_at(units.stage, w);
      const int head = x.head + row / TB;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Bounds y = context_bounds(a.rows, x.token + (row + 8 * h) % TB);
        low[h] = y.low, seen[h] = y.high - y.low;
      }
      wgmma_wait<0>();
      pin(b), pin(s);
      if (x.count > 0) {
        if (lane == 0) mbar_arrive(k_empty(ring.stage));
        mask(x, 0);
      } else {
#pragma unroll
        for (int e = 0; e < BN / 2; ++e) s[e] = -INFINITY;
      }
      if (a.causal || TB > (1 << a.rows.log2_block)) {
#pragma unroll
        for (int e = 0; e < TB / 2; ++e) {
          const int j = (row + 8 * ((e >> 1) & 1)) % TB, k = 8 * (e >> 2) + col + (e & 1);
          if ((j ^ k) >> a.rows.log2_block || (a.causal && k > j)) b[e] = -INFINITY;
        }
      }
      {
        float y[2] = {b[0], b[2]};
#pragma unroll
        for (int e = 0; e < TB / 2; ++e) y[(e >> 1) & 1] = fmaxf(y[(e >> 1) & 1], b[e]);
#pragma unroll
        for (int e = 0; e < BN / 2; ++e) y[(e >> 1) & 1] = fmaxf(y[(e >> 1) & 1], s[e]);
#pragma unroll
        for (int h = 0; h < 2; ++h) m[h] = quad_max(y[h]), l[h] = 0;
      }
      exponentials(b);
      pack(r, b);
      pin(r), pin(o);
      wgmma_fence();
      {
        const uint64_t dv = mn_major(q + C::kQ + C::kOwn, C::kOwnChunk);
#pragma unroll
        for (int t = 0; t < TB / 16; ++t) WgmmaRS<D, 1>::call(o, r + 4 * t, dv + step(t * 2048), t > 0);
        wgmma_commit();
      }
      exponentials(s);
      pack(p, s);
      if (kBuffers == 2 && i > 0 && warp == 0 &&
          lane == 0) {  // the last output is out: its buffer may be loaded again
        bulk_wait_read();
        mbar_arrive(q_empty(units.stage ^ 1, w));
      }
      Ring<kStages> v = ring;  // tile whose values come next
#pragma unroll 1
      for (int n = 1; n < x.count; ++n) {
        ring.next();
        mbar_wait(k_full(ring.stage), ring.parity);
        pin(s), pin(p), pin(o);
        wgmma_fence();
        issue_scores(q);
        wgmma_commit();
        mbar_wait(v_full(v.stage), v.parity);
        issue_values(v.stage);
        wgmma_wait<1>();
        pin(s);
        if (lane == 0) mbar_arrive(k_empty(ring.stage));
        mask(x, n);
        const bool move = softmax();
        wgmma_wait<0>();
        pin(o);
        if (lane == 0) mbar_arrive(v_empty(v.stage));
        if (move) {
#pragma unroll
          for (int e = 0; e < D / 2; ++e) o[e] *= f[(e >> 1) & 1];
        }
        pack(p, s);
        v = ring;
      }
      if (x.count > 0) {
        mbar_wait(v_full(v.stage), v.parity);
        pin(p), pin(o);
        wgmma_fence();
        issue_values(v.stage);
        ring.next();
      }
      const bool more = i + 1 < rounds;
      Note next{};
      int idle = x.tail;
      units.next();
      if (kBuffers == 2 && more) {
        next = read_note();
        idle += next.skip;
      }
      // Tiles to let pass come only after this unit's last values are released: they may wait for that stage.
      const bool ends = idle > 0 || kBuffers == 1;
      if (ends) {
        wgmma_wait<0>();
        if (x.count > 0 && lane == 0) mbar_arrive(v_empty(v.stage));
        pass(idle);
      }
      if (kBuffers == 2) {
        start(next.count);
        wgmma_wait<1>();
      }
      pin(o);
      if (!ends && x.count > 0 && lane == 0) mbar_arrive(v_empty(v.stage));

#pragma unroll
      for (int h = 0; h < 2; ++h) {
        l[h] += __shfl_xor_sync(~0u, l[h], 1);
        l[h] += __shfl_xor_sync(~0u, l[h], 2);
        f[h] = 1.f / l[h];
      }
      if ((lane & 3) == 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int t = x.token + (row + 8 * h) % TB;
          if (t < a.rows.tokens()) a.lse[int64_t(t) * a.heads + head] = m[h] * a.scale + logf(l[h]);
        }
      }
      bar_sync(1 + w,
               128);  // all four warps have stopped reading the queries: the output goes out through them
      store_tile(q, C::kQChunk, o, f[0], f[1]);
      fence_async_shared();
      bar_sync(1 + w, 128);
      if (warp == 0 && lane == 0) {
        if (x.token < a.rows.tokens()) {
          for (int ch = 0; ch < D / 64; ++ch)
            tma_store(map_out, q + ch * C::kQChunk, 64 * ch, x.token, x.head);
        }
        bulk_commit();
        if (kBuffers == 1) {
          bulk_wait_read();
          mbar_arrive(q_empty(0, w));
        }
      }
      if (kBuffers == 1) {
        if (more) {
          next = read_note();
          pass(next.skip);
        }
        start(next.count);
      }
      x = next;
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
            pairs = (units + 1) / 2;
  const int items = pairs * (s.heads / C::kHeads), grid = std::min(items, device_limits().multiprocessors);
  const bool none = a.k_context.rows == 0;  // a map needs a tensor, though no tile of it will be read
  FwdArgs args{
      .rows = {a.anchor, a.lo, blocks, std::countr_zero(unsigned(s.block)), s.window ? s.window : INT_MAX},
      .lse = a.lse,
      .pairs = pairs,
      .heads = s.heads,
      .group = s.heads / s.kv_heads,
      .causal = s.causal,
      .scale = s.scale};
  check(
      cudaFuncSetAttribute(block_fwd_kernel<D, TB>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kBytes));
  block_fwd_kernel<D, TB><<<grid, kThreads, C::kBytes, stream>>>(
      head_map(a.q, D, TB, C::kHeads), head_map(none ? a.k_block : a.k_context, D, C::kKeys, 1),
      head_map(none ? a.v_block : a.v_context, D, C::kKeys, 1), head_map(a.k_block, D, TB, 1),
      head_map(a.v_block, D, TB, 1), head_map(a.out, D, TB, C::kHeads), args);
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
