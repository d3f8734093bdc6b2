// Backward pass: dQ, and dK and dV of each unit's own blocks. Loads and tiles are those of the forward pass.
#include <algorithm>
#include <type_traits>

#include "kernels/attention_hopper_bwd.cuh"
#include "kernels/device/tma.cuh"
#include "kernels/device/wgmma.cuh"

namespace slip {
namespace {
using namespace hopper;

template <int D, int TB>
__global__ void __launch_bounds__(kThreads, 1)
    query_kernel(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_dout,
                 const __grid_constant__ TensorMap map_k, const __grid_constant__ TensorMap map_v,
                 const __grid_constant__ TensorMap map_kb, const __grid_constant__ TensorMap map_vb,
                 const __grid_constant__ TensorMap map_dq, const __grid_constant__ TensorMap map_dkb,
                 const __grid_constant__ TensorMap map_dvb, const __grid_constant__ BwdArgs a) {
#if SLIP_HOPPER_CODE
  using C = QueryTile<D, TB>;
  constexpr int BN = C::kKeys, kStages = C::kStages, kHalves = D / 64;
  extern __shared__ uint8_t pool_memory[];
  const uint32_t pool = (shared_address(pool_memory) + 1023) & ~1023u, bars = pool + C::kBars;
  uint8_t* const pool_at = pool_memory + (pool - shared_address(pool_memory));
  const uint32_t k_tiles = pool, v_tiles = pool + kStages * C::kTile;
  Note* const notes = reinterpret_cast<Note*>(pool_at + C::kNotes);
  auto k_full = [&](int s) { return bars + 8 * s; };
  auto k_empty = [&](int s) { return bars + 8 * (kStages + s); };
  auto v_full = [&](int s) { return bars + 8 * (2 * kStages + s); };
  auto v_empty = [&](int s) { return bars + 8 * (3 * kStages + s); };
  auto q_full = [&](int w) { return bars + 8 * (4 * kStages + w); };
  auto q_empty = [&](int w) { return bars + 8 * (4 * kStages + 2 + w); };
  const int wg = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s)
      mbar_init(k_full(s), 1), mbar_init(v_full(s), 1), mbar_init(k_empty(s), 8), mbar_init(v_empty(s), 8);
    for (int w = 0; w < 2; ++w) mbar_init(q_full(w), 1), mbar_init(q_empty(w), 4);
    mbar_init_fence();
    prefetch_maps(map_q, map_dout, map_k, map_v, map_kb, map_vb, map_dq, map_dkb, map_dvb);
  }
  auto plan_of = [&](int pair) {
    if (a.fused.sums != nullptr) return PairPlan{};  // the context's share of dQ is there
    return plan_pair<BN>(unit_span(a.rows, 2 * pair, TB), unit_span(a.rows, 2 * pair + 1, TB));
  };
  const int pairs = (a.units + 1) / 2;
  const Deal work = deal(pairs, pairs, a.kv_heads, reinterpret_cast<int*>(pool_at + C::kList),
                         reinterpret_cast<int*>(pool_at), [&](int pair) { return plan_of(pair).total; });
  __syncthreads();
  const int passes = uniform(work.rounds) * a.subs;  // an item takes one for each unit of its key/value head

  if (wg == 0) {
    registers_down<40>();
    if (warp == 0 && lane == 0) {
      Ring<kStages> ring;
#pragma unroll 1
      for (int i = 0; i < passes; ++i) {
        const int item = work.item(i / a.subs), g = item % a.kv_heads;
        const PairPlan plan = plan_of(item / a.kv_heads);
#pragma unroll 1
        for (int t = 0; t < plan.total; ++t, ring.next()) {
          const int s = ring.stage, key = tile_key<BN>(plan, t);
          mbar_wait(k_empty(s), ring.parity ^ 1);
          mbar_expect(k_full(s), C::kTile);
          for (int c = 0; c < kHalves; ++c)
            tma_load(k_tiles + s * C::kTile + c * C::kTileChunk, map_k, k_full(s), 64 * c, key, g);
          mbar_wait(v_empty(s), ring.parity ^ 1);
          mbar_expect(v_full(s), C::kTile);
          for (int c = 0; c < kHalves; ++c)
            tma_load(v_tiles + s * C::kTile + c * C::kTileChunk, map_v, v_full(s), 64 * c, key, g);
        }
      }
    } else if (warp == 1 && lane == 0) {
      uint32_t parity = 1;
#pragma unroll 1
      for (int i = 0; i < passes; ++i, parity ^= 1) {
        const int item = work.item(i / a.subs), g = item % a.kv_heads, pair = item / a.kv_heads;
        const int head = g * a.group + i % a.subs * C::kHeads;
        const PairPlan plan = plan_of(pair);
#pragma unroll 1
        for (int w = 0; w < 2; ++w) {
          const int token = (2 * pair + w) * TB;
          const Span span = unit_span(a.rows, 2 * pair + w, TB);
          const int skip = w ? plan.skip[1] : plan.skip[0], count = w ? plan.count[1] : plan.count[0];
          const uint32_t q = pool + C::kUnits + w * C::kUnit, own = q + 2 * C::kQ, full = q_full(w);
          mbar_wait(q_empty(w), parity);
          notes[w] = {token,
                      head,
                      skip,
                      count,
                      plan.total - skip - count,
                      w ? plan.key[1] : plan.key[0],
                      span.max_low,
                      span.min_high};
          mbar_expect(full, C::kLoad);
          for (int c = 0; c < kHalves; ++c) {
            tma_load(q + c * C::kQChunk, map_q, full, 64 * c, token, head);
            tma_load(own + c * C::kOwnChunk, map_kb, full, 64 * c, token, g);
            tma_load(q + C::kQ + c * C::kQChunk, map_dout, full, 64 * c, token, head);
            tma_load(own + C::kOwn + c * C::kOwnChunk, map_vb, full, 64 * c, token, g);
          }
        }
      }
    }
  } else {
    registers_up<232>();
    const int w = wg - 1, row = 16 * warp + lane / 4, col = 2 * (lane & 3);
    const uint32_t q = pool + C::kUnits + w * C::kUnit, d_out = q + C::kQ, own_k = d_out + C::kQ,
                   own_v = own_k + C::kOwn;
    const uint32_t pad_p = own_v + C::kOwn, pad_ds = pad_p + C::kPad,
                   out = C::kSeparate ? pool + C::kOut + w * C::kQ : q;
    const uint64_t q_desc = k_major(q), do_desc = k_major(d_out);
    const uint64_t k_desc = k_major(k_tiles), v_desc = k_major(v_tiles),
                   k_mn = mn_major(k_tiles, C::kTileChunk);
    const float c = a.scale * kLog2e;
    float* const partial = a.partial + int64_t(blockIdx.x * 2 + w) * 2 * TB * D + threadIdx.x % 128;
    Ring<kStages> ring;
    uint32_t parity = 0;
    int sub = 0;
#pragma unroll 1
    for (int i = 0; i < passes; ++i, parity ^= 1) {
      const int item = work.item(i / a.subs), token = (2 * (item / a.kv_heads) + w) * TB;
      const int head = item % a.kv_heads * a.group + i % a.subs * C::kHeads + row / TB;
      float lse2[2], delta[2];  // asked for before the queries are waited for
      int low[2], seen[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int t = token + (row + 8 * h) % TB;
        const bool real = t < a.rows.tokens();
        lse2[h] = real ? a.lse2[head * a.stride + t] : 0;
        delta[h] = real ? a.delta[head * a.stride + t] : 0;
        const Bounds y = context_bounds(a.rows, t);
        low[h] = y.low, seen[h] = y.high - y.low;
      }
      mbar_wait(q_full(w), parity);
      const Note x = uniform(notes[w]);
      float dq[D / 2], s[BN / 2], dp[BN / 2];
      uint32_t ds[BN / 4];
      auto issue = [&](bool real) {  // scores and dP of the tile at `ring`
        const uint64_t off = step(ring.stage * C::kTile);
        if (real) mbar_wait(k_full(ring.stage), ring.parity);
        forget(s), forget(dp);
        wgmma_fence();
#pragma unroll
        for (int t = 0; t < D / 16; ++t)
          WgmmaSS<BN, 0, 0>::call(s, q_desc + k_step(t, C::kQChunk), k_desc + off + k_step(t, C::kTileChunk),
                                  t > 0);
        wgmma_commit();
        if (real) mbar_wait(v_full(ring.stage), ring.parity);
#pragma unroll
        for (int t = 0; t < D / 16; ++t)
          WgmmaSS<BN, 0, 0>::call(dp, do_desc + k_step(t, C::kQChunk),
                                  v_desc + off + k_step(t, C::kTileChunk), t > 0);
        wgmma_commit();
      };
      auto pass = [&](int tiles) {
        for (; tiles > 0; --tiles, ring.next()) {
          mbar_wait(k_full(ring.stage), ring.parity);
          mbar_wait(v_full(ring.stage), ring.parity);
          if (lane == 0) mbar_arrive(k_empty(ring.stage)), mbar_arrive(v_empty(ring.stage));
        }
      };

      {
        uint32_t rs[TB / 4];
        {  // the own blocks
          float b[TB / 2], y[TB / 2];
          uint32_t rp[TB / 4];
          forget(b), forget(y);
          wgmma_fence();
#pragma unroll
          for (int t = 0; t < D / 16; ++t)
            WgmmaSS<TB, 0, 0>::call(b, q_desc + k_step(t, C::kQChunk),
                                    k_major(own_k) + k_step(t, C::kOwnChunk), t > 0);
#pragma unroll
          for (int t = 0; t < D / 16; ++t)
            WgmmaSS<TB, 0, 0>::call(y, do_desc + k_step(t, C::kQChunk),
                                    k_major(own_v) + k_step(t, C::kOwnChunk), t > 0);
          wgmma_commit();
          wgmma_wait<0>();
          pin(b), pin(y);
#pragma unroll
          for (int e = 0; e < TB / 2; ++e) {
            const int h = (e >> 1) & 1, j = (row + 8 * h) % TB, k = 8 * (e >> 2) + col + (e & 1);
            const bool unseen = (j ^ k) >> a.rows.log2_block || (a.causal && k > j);
            b[e] = unseen ? 0.f : exp2_ftz(fmaf(b[e], c, -lse2[h]));
            y[e] = b[e] * (y[e] - delta[h]);
          }
#pragma unroll
          for (int e = 0; e < TB / 4; ++e) {
            rp[e] = pack_bf16(b[2 * e], b[2 * e + 1]);
            rs[e] = pack_bf16(y[2 * e], y[2 * e + 1]);
          }
          // As B operands: eight keys are 1024 bytes, a row 16 of them; MN-major without swizzle.
          const uint32_t put = (lane >> 4) * 1024 + (16 * warp + (lane & 15)) * 16;
#pragma unroll
          for (int t = 0; t < TB / 16; ++t) {
            stmatrix(pad_p + t * 2048 + put, rp[4 * t], rp[4 * t + 1], rp[4 * t + 2], rp[4 * t + 3]);
            stmatrix(pad_ds + t * 2048 + put, rs[4 * t], rs[4 * t + 1], rs[4 * t + 2], rs[4 * t + 3]);
          }
        }
        fence_async_shared();
        bar_sync(1 + w, 128);
        // Their gradients come transposed: 64 columns (a half of D = 128) by the unit's tokens.
        constexpr int kAtOnce = C::kEarly ? kHalves : 1;
        float kd[kAtOnce][TB / 2], vd[kAtOnce][TB / 2];
        const uint64_t p_desc = descriptor(pad_p, 128, 1024, kNoSwizzle),
                       ds_desc = descriptor(pad_ds, 128, 1024, kNoSwizzle);
        auto issue_own = [&](int half) {
#pragma unroll
          for (int h = 0; h < kAtOnce; ++h) {
            const uint64_t off = step((half + h) * C::kQChunk);
#pragma unroll
            for (int t = 0; t < 4; ++t)
              WgmmaSS<TB, 1, 1>::call(kd[h], mn_major(q, C::kQChunk) + off + step(t * 2048),
                                      ds_desc + step(t * 256), t > 0);
#pragma unroll
            for (int t = 0; t < 4; ++t)
              WgmmaSS<TB, 1, 1>::call(vd[h], mn_major(d_out, C::kQChunk) + off + step(t * 2048),
                                      p_desc + step(t * 256), t > 0);
          }
          wgmma_commit();
        };
        const bool first_sub = sub == 0, last_sub = sub + 1 == a.subs;
        sub = last_sub ? 0 : sub + 1;
        auto write_own = [&](int half) {
#pragma unroll
          for (int h = 0; h < kAtOnce; ++h) pin(kd[h]), pin(vd[h]);
          if (a.subs > 1) {  // units of a key/value head follow each other: sums wait in global memory
#pragma unroll
            for (int h = 0; h < kAtOnce; ++h) {
#pragma unroll
              for (int e = 0; e < TB / 2; ++e) {
                float* const at = partial + ((half + h) * TB + e) * 128;
                if (!first_sub) kd[h][e] += at[0], vd[h][e] += at[TB / 2 * 128];
                if (!last_sub) at[0] = kd[h][e], at[TB / 2 * 128] = vd[h][e];
              }
            }
          }
          if (!last_sub) return;
          const int key = (lane & 7) + 8 * (lane >> 4), unit = 2 * warp + ((lane >> 3) & 1);
#pragma unroll
          for (int h = 0; h < kAtOnce; ++h) {
#pragma unroll
            for (int t = 0; t < TB / 16; ++t) {
              const uint32_t to =
                  (half + h) * C::kOwnChunk + (16 * t + key) * 128 + ((unit ^ (key & 7)) << 4);
              uint32_t y[4], z[4];
#pragma unroll
              for (int e = 0; e < 4; ++e) {
                y[e] = pack_bf16(kd[h][8 * t + 2 * e] * a.scale, kd[h][8 * t + 2 * e + 1] * a.scale);
                z[e] = pack_bf16(vd[h][8 * t + 2 * e], vd[h][8 * t + 2 * e + 1]);
              }
              stmatrix_trans(own_k + to, y[0], y[1], y[2], y[3]);
              stmatrix_trans(own_v + to, z[0], z[1], z[2], z[3]);
            }
          }
        };
        pin(rs), forget(dq);
#pragma unroll
        for (int h = 0; h < kAtOnce; ++h) forget(kd[h]), forget(vd[h]);
        wgmma_fence();
#pragma unroll
        for (int t = 0; t < TB / 16; ++t)
          WgmmaRS<D, 1>::call(dq, rs + 4 * t, mn_major(own_k, C::kOwnChunk) + step(t * 2048), t > 0);
        issue_own(0);
        int before = 0;              // stage of the tile before
        auto consume = [&](int n) {  // the tile at `ring`, whose scores and dP are under way
          const int stage = ring.stage, first = x.key + n * BN;
          wgmma_wait<1>();
          pin(s);
          if (n > 0 && lane == 0) mbar_arrive(k_empty(before));
          if (first < x.max_low || first + BN > x.min_high) {
#pragma unroll
            for (int e = 0; e < BN / 2; ++e) {
              const int h = (e >> 1) & 1;
              const unsigned k = first + 8 * (e >> 2) + col + (e & 1) - low[h];
              if (k >= unsigned(seen[h])) s[e] = -INFINITY;
            }
          }
#pragma unroll
          for (int e = 0; e < BN / 2; ++e) s[e] = exp2_ftz(fmaf(s[e], c, -lse2[(e >> 1) & 1]));
          wgmma_wait<0>();
          pin(dp);
          if (lane == 0) mbar_arrive(v_empty(stage));
#pragma unroll
          for (int e = 0; e < BN / 4; ++e)
            ds[e] = pack_bf16(s[2 * e] * (dp[2 * e] - delta[e & 1]),
                              s[2 * e + 1] * (dp[2 * e + 1] - delta[e & 1]));
          pin(ds);
          wgmma_fence();
#pragma unroll
          for (int t = 0; t < BN / 16; ++t)
            WgmmaRS<D, 1>::call(dq, ds + 4 * t, k_mn + step(stage * C::kTile + t * 2048), 1);
          wgmma_commit();
          before = stage;
          ring.next();
        };

        // The first tile's scores and dP run while the own blocks' gradients are written; without a tile, all
        // the same and nobody looks: a branch would make ptxas serialise everything.
        pass(x.skip);
        if (C::kEarly) {
          issue(x.count > 0);
          wgmma_wait<2>();
        } else {
          wgmma_wait<0>();
        }
        if (last_sub) bar_sync(1 + w, 128);  // all have read the blocks' keys and values: results go there
        write_own(0);
#pragma unroll
        for (int half = kAtOnce; half < kHalves; ++half) {
#pragma unroll
          for (int h = 0; h < kAtOnce; ++h) pin(kd[h]), pin(vd[h]);
          wgmma_fence();
          issue_own(half);
          wgmma_wait<0>();
          write_own(half);
        }
        if (last_sub) {
          fence_async_shared();
          bar_sync(1 + w, 128);
          if (warp == 0 && lane == 0) {
            if (x.token < a.rows.tokens()) {
              for (int h = 0; h < kHalves; ++h) {
                tma_store(map_dkb, own_k + h * C::kOwnChunk, 64 * h, x.token, x.head / a.group);
                tma_store(map_dvb, own_v + h * C::kOwnChunk, 64 * h, x.token, x.head / a.group);
              }
            }
            bulk_commit();
          }
        }
        if (!C::kEarly) issue(x.count > 0);
        wgmma_wait<0>();
        if (x.count > 0) consume(0);
#pragma unroll 1
        for (int n = 1; n < x.count; ++n) {
          issue(true);
          consume(n);
        }
        if (C::kSeparate && lane == 0) {  // scores are done with the queries
          if (warp == 0) bulk_wait_read();
          mbar_arrive(q_empty(w));
        }
        wgmma_wait<0>();
        pin(dq);
        if (x.count > 0 && lane == 0) mbar_arrive(k_empty(before));
        pass(x.tail);
        if (a.fused.sums != nullptr)
          add_sum(dq, a, 2 * (item / a.kv_heads) + w, item % a.kv_heads, i % a.subs);
      }
      bar_sync(1 + w, 128);  // nobody reads Q any more; the dQ before has left (warp 0 waited for it above)
      store_tile(out, C::kQChunk, dq, a.scale, a.scale);
      fence_async_shared();
      bar_sync(1 + w, 128);
      if (warp == 0 && lane == 0) {
        if (x.token < a.rows.tokens()) {
          for (int h = 0; h < kHalves; ++h) tma_store(map_dq, out + h * C::kQChunk, 64 * h, x.token, x.head);
        }
        bulk_commit();
        if (!C::kSeparate) bulk_wait_read();
      }
      if (!C::kSeparate) {
        __syncwarp();
        if (lane == 0) mbar_arrive(q_empty(w));
      }
    }
    if (warp == 0 && lane == 0) bulk_wait();
  }
#endif
}

template <int D, int TB>
void launch(const BlockAttentionBwd<Bf16>& a, const BwdArgs& args, CudaStream stream) {
  using C = QueryTile<D, TB>;
  check(cudaFuncSetAttribute(query_kernel<D, TB>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kBytes));
  const int items = (args.units + 1) / 2 * args.kv_heads;
  const int grid =
      std::max(1, std::min({items, device_limits().multiprocessors - a.leave_multiprocessors, kMaxBlocks}));
  query_kernel<D, TB><<<grid, kThreads, C::kBytes, stream>>>(
      head_map(a.q, D, TB, C::kHeads), head_map(a.dout, D, TB, C::kHeads),
      head_map(some(a.k_context, a.k_block), D, C::kKeys, 1),
      head_map(some(a.v_context, a.v_block), D, C::kKeys, 1), head_map(a.k_block, D, TB, 1),
      head_map(a.v_block, D, TB, 1), head_map(a.dq, D, TB, C::kHeads), head_map(a.dk_block, D, TB, 1),
      head_map(a.dv_block, D, TB, 1), args);
  check(cudaGetLastError());
}

}  // namespace

void hopper::launch_query(const BlockAttentionBwd<Bf16>& a, const BwdArgs& args, CudaStream stream) {
  const auto go = [&](auto d) {
    if (args.unit_tokens == 16) return launch<d, 16>(a, args, stream);
    if (args.unit_tokens == 32) return launch<d, 32>(a, args, stream);
    launch<d, 64>(a, args, stream);
  };
  a.shape.head_dim == 128 ? go(std::integral_constant<int, 128>{}) : go(std::integral_constant<int, 64>{});
}

}  // namespace slip
