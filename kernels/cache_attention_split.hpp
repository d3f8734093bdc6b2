// The tensor-core path of cache_attention_fwd_cuda for bf16, and of block_attention_fwd_cuda for one block
// with scratch; attention_simple's tiles and the kernels of many blocks take what it does not.
#pragma once
#include "kernels/cache_attention.hpp"

namespace slip {

// head dim 64, 128 or 256, rows of 16-byte pieces
bool split_takes(const CacheAttentionFwd<Bf16>&);
void cache_attention_split(const CacheAttentionFwd<Bf16>&, CudaStream);
bool split_takes(const BlockAttentionFwd<Bf16>&);
void block_attention_split(const BlockAttentionFwd<Bf16>&, CudaStream);

}  // namespace slip
