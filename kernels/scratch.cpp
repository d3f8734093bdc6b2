// How much scratch the ops ask for, on both devices: what is planned before a tensor exists.
#include <algorithm>

#include "kernels/adamw.hpp"
#include "kernels/attention.hpp"
#include "kernels/cache_attention.hpp"
#include "kernels/gated_delta.hpp"
#include "kernels/partials.hpp"
#include "kernels/rmsnorm.hpp"
#include "kernels/rope.hpp"
#if SLIP_HAVE_CUDA
#include "kernels/attention_hopper.hpp"
#endif

namespace slip {

int64_t rmsnorm_bwd_scratch(int64_t rows, int64_t hidden, Device device) {
  return device == Device::cpu ? 0 : gain_parts(rows) * hidden;
}

int64_t head_rope_bwd_scratch(int64_t rows, int heads, int head_dim, Device device) {
  return device == Device::cpu ? 0 : int64_t(gain_parts(rows * heads)) * head_dim;
}

int64_t sum_squares_scratch(Device device) { return device == Device::cpu ? 0 : kSquareParts; }

// Output, maximum and sum of every row that a piece of the cache has seen.
int64_t cache_attention_scratch(const AttentionShape& s, Device device) {
  return device == Device::cpu ? 0 : int64_t{kCacheBlocks} * kCacheRows * (s.head_dim + 2);
}

// The simple kernels keep rowsum(dout * out) for every row and head.
int64_t block_attention_bwd_scratch(const AttentionShape& s, int64_t blocks, int64_t context, Device device) {
  if (device == Device::cpu) return 0;
  const int64_t simple = blocks * s.block * s.heads;
#if SLIP_HAVE_CUDA
  return std::max(simple, block_attention_bwd_hopper_scratch(s, blocks, context));
#else
  return static_cast<void>(context), simple;
#endif
}

// What the fast kernels hand from one to the other; the simple one keeps its state in registers. Room for as
// many chunks as documents of 512 tokens on average make.
template <class T> int64_t gated_delta_scratch(const DeltaShape& s, int64_t tokens, Device device) {
  if (device == Device::cpu || sizeof(T) != 2 || !delta_chunks_fit(s)) return 0;
  const int64_t chunks = (tokens + kDeltaChunk - 1) / kDeltaChunk + tokens / 512;
  return chunks * s.value_heads * kDeltaBlockBytes;
}
template int64_t gated_delta_scratch<float>(const DeltaShape&, int64_t, Device);
template int64_t gated_delta_scratch<double>(const DeltaShape&, int64_t, Device);
template int64_t gated_delta_scratch<Bf16>(const DeltaShape&, int64_t, Device);

}  // namespace slip
