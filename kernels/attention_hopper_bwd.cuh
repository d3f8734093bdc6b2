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
