// Causal attention forward of packed documents on sm_90a, for the target.
//
// A work item is 64 tokens of two query heads of one key/value head (one for each computing warpgroup; both
// have the same bound and read the same keys), or, where the group is odd, 128 tokens of one head. Warpgroup
// 0 loads. Keys go up from the first token of the document: key 0 is seen by every row, so no row is ever
// empty. What a tile drags in of the next document is masked by position.
#include <algorithm>

#include "kernels/attention_hopper.cuh"
#include "kernels/device/tma.cuh"
#include "kernels/device/wgmma.cuh"

namespace slip {
namespace {
using namespace hopper;

struct CausalArgs {
  const int* cu;
  View2<Bf16> out;
  int documents, heads, group, slots, used, item_rows, item_heads;
  float scale;
};

template <int D> struct CausalTile {
  static constexpr int kKeys = D == 256 ? 64 : 128, kStages = 2;
  static constexpr int kTile = kKeys * D * 2, kTileChunk = kKeys * 128;
  static constexpr int kQ = kRows * D * 2, kQChunk = kRows * 128;
  static constexpr int kUnits = 2 * kStages * kTile, kOut = kUnits + 2 * kQ;
  static constexpr int kRest = 256 + 64 + kListed * 4 + 1024;
  static constexpr bool kSeparate =
      kOut + 2 * kQ + kRest <= kMaxSharedBytes;  // the output does not go out through Q
  static constexpr int kBars = kOut + (kSeparate ? 2 * kQ : 0), kNotes = kBars + 256, kList = kNotes + 64;
  static constexpr int kBytes = kBars + kRest;
  static_assert(kBytes <= kMaxSharedBytes && kUnits >= kSorted * 4);
};

// The rows of a document are cut from its first token on, in pieces of `rows`. Slot p of the row is piece
// p - (cu[s] / rows + s) of document s: a numbering without a table, with gaps where documents end.
struct Piece {
  int base, length, first;  // of the document; first row of the piece in it, `length` or more: a gap
};
__device__ __forceinline__ Piece piece_at(const int* cu, int documents, int rows, int slot) {
  int s = 0;
  for (int high = documents; high - s > 1;) {  // the last document whose pieces begin at or before the slot
    const int mid = (s + high) / 2;
    if (cu[mid] / rows + mid <= slot)
      s = mid;
    else
      high = mid;
  }
  return {cu[s], cu[s + 1] - cu[s], (slot - cu[s] / rows - s) * rows};
}
// Tiles of keys that `rows` rows from `first` on read.
template <int BN> __device__ __forceinline__ int tiles_of(const Piece& x, int first, int rows) {
  return first < x.length ? (min(first + rows, x.length) + BN - 1) / BN : 0;
}

template <int D>
__global__ void __launch_bounds__(kThreads, 1)
    causal_kernel(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                  const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_out,
                  const __grid_constant__ CausalArgs a) {
#if SLIP_HOPPER_CODE
  using C = CausalTile<D>;
  constexpr int BN = C::kKeys, kStages = C::kStages;
  extern __shared__ uint8_t pool_memory[];
  const uint32_t pool = (shared_address(pool_memory) + 1023) & ~1023u, bars = pool + C::kBars;
  uint8_t* const pool_at = pool_memory + (pool - shared_address(pool_memory));
  const uint32_t k_tiles = pool, v_tiles = pool + kStages * C::kTile, queries = pool + C::kUnits;
  int4* const notes = reinterpret_cast<int4*>(pool_at + C::kNotes);
  auto k_full = [&](int s) { return bars + 8 * s; };
  auto k_empty = [&](int s) { return bars + 8 * (kStages + s); };
  auto v_full = [&](int s) { return bars + 8 * (2 * kStages + s); };
  auto v_empty = [&](int s) { return bars + 8 * (3 * kStages + s); };
  auto q_full = [&](int w) { return bars + 8 * (4 * kStages + w); };
  auto q_empty = [&](int w) { return bars + 8 * (4 * kStages + 2 + w); };
  const int wg = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbar_init(k_full(s), 1), mbar_init(k_empty(s), 8);
      mbar_init(v_full(s), 1), mbar_init(v_empty(s), 8);
    }
    for (int w = 0; w < 2; ++w) mbar_init(q_full(w), 1), mbar_init(q_empty(w), 4);
    mbar_init_fence();
    prefetch_maps(map_q, map_k, map_v, map_out);
  }
  const int columns = a.heads / a.item_heads;
  auto piece = [&](int slot) { return piece_at(a.cu, a.documents, a.item_rows, slot); };
  const Deal work = deal(a.slots, a.used, columns, reinterpret_cast<int*>(pool_at + C::kList),
                         reinterpret_cast<int*>(pool_at), [&](int slot) {
                           const Piece x = piece(slot);
                           return tiles_of<BN>(x, x.first, a.item_rows);
                         });
  __syncthreads();
  const int rounds = uniform(work.rounds);

  if (wg == 0) {
    registers_down<40>();
    if (warp == 0 && lane == 0) {
      Ring<kStages> ring;
#pragma unroll 1
      for (int i = 0; i < rounds; ++i) {
        const int item = work.item(i), head = item % columns * a.item_heads / a.group;
        const Piece x = piece(item / columns);
        const int tiles = tiles_of<BN>(x, x.first, a.item_rows);
#pragma unroll 1
        for (int n = 0; n < tiles; ++n, ring.next()) {
          const int s = ring.stage, key = x.base + n * BN;
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
      uint32_t parity = 1;
#pragma unroll 1
      for (int i = 0; i < rounds; ++i, parity ^= 1) {
        const int item = work.item(i);
        const Piece x = piece(item / columns);
#pragma unroll 1
        for (int w = 0; w < 2; ++w) {
          const int first = x.first + (a.item_heads == 1 ? w * kRows : 0);
          const int head = item % columns * a.item_heads + (a.item_heads == 1 ? 0 : w);
          mbar_wait(q_empty(w), parity);
          notes[w] = {x.base, x.length, first, head};
          mbar_expect(q_full(w), C::kQ);
          for (int c = 0; c < D / 64; ++c)
            tma_load(queries + w * C::kQ + c * C::kQChunk, map_q, q_full(w), 64 * c, x.base + first, head);
        }
      }
    }
  } else {
    registers_up<232>();
    const int w = wg - 1, row = 16 * warp + lane / 4, col = 2 * (lane & 3);
    const uint32_t q = queries + w * C::kQ, out = C::kSeparate ? pool + C::kOut + w * C::kQ : q;
    const uint64_t q_desc = k_major(q), k_desc = k_major(k_tiles), v_desc = mn_major(v_tiles, C::kTileChunk);
    const float c = a.scale * kLog2e;
    Ring<kStages> ring;
    uint32_t parity = 0;
#pragma unroll 1
    for (int i = 0; i < rounds; ++i, parity ^= 1) {
      mbar_wait(q_full(w), parity);
      const Piece x = {uniform(notes[w].x), uniform(notes[w].y), uniform(notes[w].z)};
      const int head = uniform(notes[w].w);
      const int count = tiles_of<BN>(x, x.first, kRows);
      const int item_first = a.item_heads == 1 ? x.first - w * kRows : x.first;
      const int idle =
          tiles_of<BN>(x, item_first, a.item_rows) - count;  // of 128 tokens: what only the second 64 read
      float o[D / 2], s[BN / 2], m[2] = {-1e30f, -1e30f}, l[2] = {0, 0}, f[2];
      uint32_t p[BN / 4];
      auto issue_scores = [&] {
        const uint64_t dk = k_desc + step(ring.stage * C::kTile);
#pragma unroll
        for (int t = 0; t < D / 16; ++t)
          WgmmaSS<BN, 0, 0>::call(s, q_desc + k_step(t, C::kQChunk), dk + k_step(t, C::kTileChunk), t > 0);
        wgmma_commit();
      };
      auto issue_values = [&](int stage) {
        const uint64_t dv = v_desc + step(stage * C::kTile);
#pragma unroll
        for (int t = 0; t < BN / 16; ++t) WgmmaRS<D, 1>::call(o, p + 4 * t, dv + step(t * 2048), 1);
        wgmma_commit();
      };
      auto softmax =
          [&](int n) -> bool {  // true: the output has to be rescaled; see the block-diffusion kernel
        if ((n + 1) * BN - 1 > x.first) {
#pragma unroll
          for (int e = 0; e < BN / 2; ++e)
            if (n * BN + 8 * (e >> 2) + col + (e & 1) > x.first + row + 8 * ((e >> 1) & 1)) s[e] = -INFINITY;
        }
        float y[2] = {s[0], s[2]};
#pragma unroll
        for (int e = 0; e < BN / 2; ++e) y[(e >> 1) & 1] = fmaxf(y[(e >> 1) & 1], s[e]);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          y[h] = fmaxf(y[h], __shfl_xor_sync(~0u, y[h], 1));
          y[h] = fmaxf(y[h], __shfl_xor_sync(~0u, y[h], 2));
          y[h] = fmaxf(y[h], m[h]);
        }
        const bool move = __any_sync(~0u, (y[0] - m[0]) * c > 8.f || (y[1] - m[1]) * c > 8.f);
        if (move) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            f[h] = exp2_ftz((m[h] - y[h]) * c);
            m[h] = y[h];
            l[h] *= f[h];
          }
        }
        const float mc[2] = {m[0] * c, m[1] * c};
#pragma unroll
        for (int e = 0; e < BN / 2; ++e) {
          s[e] = exp2_ftz(fmaf(s[e], c, -mc[(e >> 1) & 1]));
          l[(e >> 1) & 1] += s[e];
        }
        return move;
      };
      auto pack = [&] {
#pragma unroll
        for (int e = 0; e < BN / 4; ++e) p[e] = pack_bf16(s[2 * e], s[2 * e + 1]);
      };

      if (count > 0) {
        Ring<kStages> v = ring;  // tile whose values come next
        mbar_wait(k_full(ring.stage), ring.parity);
        pin(s);
        wgmma_fence();
        issue_scores();
        wgmma_wait<0>();
        pin(s);
        if (lane == 0) mbar_arrive(k_empty(ring.stage));
        softmax(0);
        pack();
#pragma unroll
        for (int e = 0; e < D / 2; ++e) o[e] = 0;
#pragma unroll 1
        for (int n = 1; n < count; ++n) {
          ring.next();
          mbar_wait(k_full(ring.stage), ring.parity);
          pin(s), pin(p), pin(o);
          wgmma_fence();
          issue_scores();
          mbar_wait(v_full(v.stage), v.parity);
          issue_values(v.stage);
          wgmma_wait<1>();
          pin(s);
          if (lane == 0) mbar_arrive(k_empty(ring.stage));
          const bool move = softmax(n);
          wgmma_wait<0>();
          pin(o);
          if (lane == 0) mbar_arrive(v_empty(v.stage));
          if (move) {
#pragma unroll
            for (int e = 0; e < D / 2; ++e) o[e] *= f[(e >> 1) & 1];
          }
          pack();
          v = ring;
        }
        if (C::kSeparate && lane == 0) mbar_arrive(q_empty(w));
        mbar_wait(v_full(v.stage), v.parity);
        pin(p), pin(o);
        wgmma_fence();
        issue_values(v.stage);
        wgmma_wait<0>();
        pin(o);
        if (lane == 0) mbar_arrive(v_empty(v.stage));
        ring.next();
      } else if (C::kSeparate && lane == 0) {
        mbar_arrive(q_empty(w));
      }
      for (int n = 0; n < idle; ++n, ring.next()) {
        mbar_wait(k_full(ring.stage), ring.parity);
        mbar_wait(v_full(ring.stage), ring.parity);
        if (lane == 0) mbar_arrive(k_empty(ring.stage)), mbar_arrive(v_empty(ring.stage));
      }
      if (count > 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          l[h] += __shfl_xor_sync(~0u, l[h], 1);
          l[h] += __shfl_xor_sync(~0u, l[h], 2);
          f[h] = 1.f / l[h];
        }
        if (x.first + kRows <= x.length) {
          if (C::kSeparate && warp == 0 && lane == 0) bulk_wait_read();
          bar_sync(1 + w, 128);  // nobody reads Q any more, and the last output has left its buffer
          store_tile(out, C::kQChunk, o, f[0], f[1]);
          fence_async_shared();
          bar_sync(1 + w, 128);
          if (warp == 0 && lane == 0) {
            for (int ch = 0; ch < D / 64; ++ch)
              tma_store(map_out, out + ch * C::kQChunk, 64 * ch, x.base + x.first, head);
            bulk_commit();
            if (!C::kSeparate) bulk_wait_read();
          }
        } else {  // the end of a document: the next rows belong to another
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int r = x.first + row + 8 * h;
            if (r >= x.length) continue;
            uint32_t* const to = reinterpret_cast<uint32_t*>(a.out.row(x.base + r) + int64_t(head) * D + col);
#pragma unroll
            for (int u = 0; u < D / 8; ++u)
              to[4 * u] = pack_bf16(o[4 * u + 2 * h] * f[h], o[4 * u + 2 * h + 1] * f[h]);
          }
        }
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

template <int D> void launch(const CausalAttentionFwd<Bf16>& a, CudaStream stream) {
  using C = CausalTile<D>;
  const AttentionShape& s = a.shape;
  const int group = s.heads / s.kv_heads, item_heads = group % 2 == 0 ? 2 : 1,
            rows = item_heads == 2 ? kRows : 2 * kRows;
  int used = 0;
  for (int i = 0; i < a.documents; ++i) used += (a.cu_host[i + 1] - a.cu_host[i] + rows - 1) / rows;
  if (used == 0) return;
  const int slots = a.cu_host[a.documents] / rows + a.documents;
  const int grid = std::min(used * (s.heads / item_heads), device_limits().multiprocessors);
  const CausalArgs args{.cu = a.cu,
                        .out = a.out,
                        .documents = a.documents,
                        .heads = s.heads,
                        .group = group,
                        .slots = slots,
                        .used = used,
                        .item_rows = rows,
                        .item_heads = item_heads,
                        .scale = s.scale};
  check(cudaFuncSetAttribute(causal_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kBytes));
  causal_kernel<D><<<grid, kThreads, C::kBytes, stream>>>(
      head_map(a.q, D, kRows, 1), head_map(a.k, D, C::kKeys, 1), head_map(a.v, D, C::kKeys, 1),
      head_map(a.out, D, kRows, 1), args);
  check(cudaGetLastError());
}

}  // namespace

void causal_attention_fwd_hopper(const CausalAttentionFwd<Bf16>& a, CudaStream stream) {
  require(hopper_supports(a), "causal_attention_fwd_hopper: device, shape, strides or alignment do not fit");
  if (a.q.rows == 0) return;
  if (a.shape.head_dim == 64) return launch<64>(a, stream);
  if (a.shape.head_dim == 128) return launch<128>(a, stream);
  launch<256>(a, stream);
}

}  // namespace slip
