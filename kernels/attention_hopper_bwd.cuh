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

// attention_hopper_context.cu: keys of a tile, and a launch.
int context_tile_keys(bool split);
void launch_context(const BlockAttentionBwd<Bf16>&, const BwdArgs&, bool split, CudaStream);
// attention_hopper_query.cu
void launch_query(const BlockAttentionBwd<Bf16>&, const BwdArgs&, CudaStream);

}  // namespace slip::hopper
