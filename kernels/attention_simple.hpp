// Attention on any CUDA device without its special instructions: the portable back end, and the second oracle
// of the Hopper kernels. Any head_dim that is a multiple of 8 up to 256, any group of query heads, blocks of
// 1 to 32 slots.
#pragma once
#include "kernels/attention.hpp"

namespace slip {

template <class T> void block_attention_fwd_simple(const BlockAttentionFwd<T>&, CudaStream);
template <class T> void block_attention_bwd_simple(const BlockAttentionBwd<T>&, CudaStream);
template <class T> void causal_attention_fwd_simple(const CausalAttentionFwd<T>&, CudaStream);

}  // namespace slip
