// The three kernels of the block-diffusion backward pass on sm_90a, and what they share.
#pragma once
#include "kernels/attention_hopper.cuh"

namespace slip::hopper {

constexpr int kMaxBlocks = 160;  // thread blocks of a launch: no sm_90 part has more multiprocessors

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
  View2<float> dk, dv;  // of the context
  int heads, kv_heads, group, units, unit_tokens, unit_heads, subs;
  int tiles, tile_keys, context, context_grid;
  bool causal;
  float scale;
};

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
// attention_hopper_query.cu
void launch_query(const BlockAttentionBwd<Bf16>&, const BwdArgs&, CudaStream);

}  // namespace slip::hopper
