// Attention on sm_90a in bf16: TMA loads, wgmma, warp specialisation. The dispatcher (attention.cu) asks
// hopper_supports and takes the simple path where the answer is no.
//
// What is supported: head_dim 64 and 128 (causal forward: also 256), 1 to 8 query heads per key/value head,
// blocks of 4, 8, 16 or 32 slots, any number of blocks, context length, window and packing; views whose rows
// start at multiples of 16 bytes. `lo` must not descend, as `anchor` does not: both hold for blocks sorted by
// anchor. Results are the same bits at every launch: one owner for every output element, or sums in a fixed
// order.
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

// How the backward pass goes over the context: `separate`, dK and dV in one kernel and dQ in another;
// `fused`, all three in one, where head_dim is 128 and a key/value head has an even number of query heads;
// `fused_both_ways`, with half of the items gone through in the other direction. Each adds up in an order of
// its own. README.md says what each takes.
enum class BackwardForm { fastest, separate, fused, fused_both_ways };
bool hopper_supports(const AttentionShape&, BackwardForm);

// Floats of scratch the backward pass needs, 16-byte aligned (statistics of the rows, key ranges, the work
// lists, sums of dQ). An upper bound for every device; 0 where the shape is not supported.
int64_t block_attention_bwd_hopper_scratch(const AttentionShape&, int64_t blocks, int64_t context,
                                           BackwardForm = BackwardForm::fastest);

void block_attention_fwd_hopper(const BlockAttentionFwd<Bf16>&, CudaStream);
void block_attention_bwd_hopper(const BlockAttentionBwd<Bf16>&, CudaStream,
                                BackwardForm = BackwardForm::fastest);
void causal_attention_fwd_hopper(const CausalAttentionFwd<Bf16>&, CudaStream);

}  // namespace slip
