// Attention on sm_90a in bf16: TMA loads, wgmma, warp specialisation. The dispatcher (attention.cu) asks
// hopper_supports and takes the simple path where the answer is no.
//
// What is supported: head_dim 64 and 128 (causal forward: also 256), 1 to 8 query heads per key/value head,
// blocks of 4, 8, 16 or 32 slots, any number of blocks, context length, window and packing; views whose rows
// start at multiples of 16 bytes. `lo` must not descend, as `anchor` does not: both hold for blocks sorted by
// anchor. Results are the same bits at every launch: one owner for every output element, no atomics.
#pragma once
#include "kernels/attention.hpp"

namespace slip {

// The build has sm_90a code and the current device runs it. Cached per device; launches nothing.
bool hopper_available();

// Shape alone, for sizing scratch before any tensor exists: does a block-diffusion kernel exist for it?
bool hopper_supports_block(const AttentionShape&);

// Device, shape, strides and alignment.
bool hopper_supports(const BlockAttentionFwd<Bf16>&);
bool hopper_supports(const BlockAttentionBwd<Bf16>&);
bool hopper_supports(const CausalAttentionFwd<Bf16>&);

// Floats of scratch the backward pass needs, 16-byte aligned (statistics of the rows, key ranges, the work
// lists). An upper bound for every device; 0 where the shape is not supported.
int64_t block_attention_bwd_hopper_scratch(const AttentionShape&, int64_t blocks, int64_t context);

void block_attention_fwd_hopper(const BlockAttentionFwd<Bf16>&, CudaStream);
void block_attention_bwd_hopper(const BlockAttentionBwd<Bf16>&, CudaStream);
void causal_attention_fwd_hopper(const CausalAttentionFwd<Bf16>&, CudaStream);

}  // namespace slip
