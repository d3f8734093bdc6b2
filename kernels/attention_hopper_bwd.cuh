// The kernels of the block-diffusion backward pass on sm_90a, and what they share.
#pragma once
#include "kernels/attention_hopper.cuh"

namespace slip::hopper {

constexpr int kMaxBlocks = 160;  // thread blocks of a launch: no sm_90 part has more multiprocessors

constexpr int kFusedSum = kRows * 128, kFusedTokens = 32;  // floats of a sum; tokens of a unit at most
constexpr int kWave = 132;                                 // items that run at the same time, about

// Of the fused form. A sum is the context's share of dQ of a unit, a key/value head and a sub, as the
// accumulators of the two halves of its columns lie in registers, one half after the other.
struct FusedArgs {
  float* sums = nullptr;  // (units, kv_heads, subs, kFusedSum); null: the separate form
  unsigned* turns;        // (units, kv_heads, subs): tiles of keys that are in
  unsigned* ticket;       // the next item: tile * kv_heads + head
  int upwards;            // from this item on, units are gone through first to last
};

struct BwdArgs {
  DraftRows rows;
  const float* lse;     // (tokens, heads)
  float *lse2, *delta;  // (heads, stride): lse * log2(e) and rowsum(dout * out); 0 past the last token
  int64_t stride;
  Bounds* bounds;      // (stride)
  int2* range;         // (tiles) units [x, y) that see a tile
  int *items, *begin;  // work of the context kernel: tile * kv_heads + head, grouped by thread block
  int* owner;          // while dealing
  float* partial;
  FusedArgs fused;
  View2<float> dk, dv;  // of the context
  int heads, kv_heads, group, units, unit_tokens, unit_heads, subs;
  int tiles, tile_keys, context, context_grid;
  bool causal;
  float scale;
};

// --- between the products of a step of the context: 64 keys, which are the accumulators' rows, by the 64
// rows of a unit, which are their columns --- Scores of keys that a token does not see; `key`: of this
// thread's first row, `column`: its first.
__device__ __forceinline__ void hide_unseen(float (&s)[32], const Bounds* bounds, int unit_tokens, int key,
                                            int column) {
#pragma unroll
  for (int u = 0; u < 8; ++u) {
    const int4 y = *reinterpret_cast<const int4*>(bounds + ((8 * u + column) & (unit_tokens - 1)));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int k = key + 8 * h;
      if (unsigned(k - y.x) >= unsigned(y.y - y.x)) s[4 * u + 2 * h] = -INFINITY;
      if (unsigned(k - y.z) >= unsigned(y.w - y.z)) s[4 * u + 2 * h + 1] = -INFINITY;
    }
  }
}
// P = exp2(c S - lse2), in place and as operand of the next product.
__device__ __forceinline__ void weigh(float (&s)[32], uint32_t (&p)[16], const float2* lse2, float c) {
#pragma unroll
  for (int u = 0; u < 8; ++u) {
    const float2 y = lse2[4 * u];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float &s0 = s[4 * u + 2 * h], &s1 = s[4 * u + 2 * h + 1];
      s0 = exp2_ftz(fmaf(s0, c, -y.x));
      s1 = exp2_ftz(fmaf(s1, c, -y.y));
      p[2 * u + h] = pack_bf16(s0, s1);
    }
  }
}
// dS = P (dP - delta), without the scale.
__device__ __forceinline__ void score_gradients(uint32_t (&ds)[16], const float (&p)[32],
                                                const float (&dp)[32], const float2* delta) {
#pragma unroll
  for (int u = 0; u < 8; ++u) {
    const float2 y = delta[4 * u];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      ds[2 * u + h] = pack_bf16(p[4 * u + 2 * h] * (dp[4 * u + 2 * h] - y.x),
                                p[4 * u + 2 * h + 1] * (dp[4 * u + 2 * h + 1] - y.y));
  }
}

// Adds a thread's part of an accumulator, rows `row` and row + 8, columns from `column` on, to a matrix of
// floats.
template <int n>
__device__ __forceinline__ void add_rows(const View2<float>& to, int row, int column, const float (&x)[n],
                                         float factor) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (row + 8 * h >= to.rows) continue;
    float2* const at = reinterpret_cast<float2*>(to.row(row + 8 * h) + column);
    float2 y[n / 4];  // all loads before the first store
#pragma unroll
    for (int u = 0; u < n / 4; ++u) y[u] = at[4 * u];
#pragma unroll
    for (int u = 0; u < n / 4; ++u) {
      y[u].x = fmaf(x[4 * u + 2 * h], factor, y[u].x);
      y[u].y = fmaf(x[4 * u + 2 * h + 1], factor, y[u].y);
      at[4 * u] = y[u];
    }
  }
}

// Adds the context's share to dQ of a unit, a key/value head and a sub.
template <int n>
__device__ __forceinline__ void add_sum(float (&dq)[n], const BwdArgs& a, int unit, int kv_head, int sub) {
  const int64_t at = (int64_t(unit) * a.kv_heads + kv_head) * a.subs + sub;
  if (unit >= a.units || a.fused.turns[at] == 0) return;
  const float4* const from =
      reinterpret_cast<const float4*>(a.fused.sums + at * kFusedSum) + threadIdx.x % 128;
#pragma unroll
  for (int u = 0; u < n / 4; ++u) {
    const float4 y = from[u * 128];
    dq[4 * u] += y.x, dq[4 * u + 1] += y.y, dq[4 * u + 2] += y.z, dq[4 * u + 3] += y.w;
  }
}

// Shared memory of a thread block of attention_hopper_query.cu.
template <int D, int TB> struct QueryTile {
  static constexpr int kKeys = 64, kStages = D == 128 && TB == 64 ? 2 : 3;
  static constexpr int kHeads = kRows / TB;
  static constexpr int kTile = kKeys * D * 2, kTileChunk = kKeys * 128;
  static constexpr int kQ = kRows * D * 2, kQChunk = kRows * 128;
  static constexpr int kOwn = TB * D * 2, kOwnChunk = TB * 128;
  static constexpr int kPad = kRows * TB * 2;  // P or dS of the own blocks
  static constexpr int kLoad = 2 * kQ + 2 * kOwn, kUnit = kLoad + 2 * kPad;
  static constexpr int kUnits = 2 * kStages * kTile, kOut = kUnits + 2 * kUnit;
  static constexpr int kRest = 256 + 64 + kListed * 4 + 1024;
  static constexpr bool kSeparate = kOut + 2 * kQ + kRest <= kMaxSharedBytes;  // dQ does not go out through Q
  static constexpr int kBars = kOut + (kSeparate ? 2 * kQ : 0), kNotes = kBars + 256, kList = kNotes + 64;
  static constexpr int kBytes = kBars + kRest;
  static constexpr bool kEarly =
      D == 64 || TB == 16;  // registers for the first scores beside the own blocks' gradients
  static_assert(kBytes <= kMaxSharedBytes && kUnits >= kSorted * 4);
};

// attention_hopper_context.cu: keys of a tile, and a launch.
int context_tile_keys(bool split);
void launch_context(const BlockAttentionBwd<Bf16>&, const BwdArgs&, bool split, CudaStream);
// attention_hopper_fused.cu
void launch_fused(const BlockAttentionBwd<Bf16>&, const BwdArgs&, CudaStream);
// attention_hopper_query.cu
void launch_query(const BlockAttentionBwd<Bf16>&, const BwdArgs&, CudaStream);

}  // namespace slip::hopper
