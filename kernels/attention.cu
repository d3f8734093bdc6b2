// Which kernel: a single block with scratch shares its context out; else the Hopper path where the device and
// the shape have one, the simple kernels everywhere else.
#include "kernels/attention.hpp"

#include "kernels/attention_hopper.hpp"
#include "kernels/attention_simple.hpp"
#include "kernels/cache_attention_split.hpp"

namespace slip {

template <class T> void block_attention_fwd_cuda(const BlockAttentionFwd<T>& a, CudaStream stream) {
  if constexpr (__is_same(T, Bf16)) {
    if (split_takes(a)) return block_attention_split(a, stream);
    if (hopper_supports(a)) return block_attention_fwd_hopper(a, stream);
  }
  block_attention_fwd_simple(a, stream);
}

template <class T> void block_attention_bwd_cuda(const BlockAttentionBwd<T>& a, CudaStream stream) {
  if constexpr (__is_same(T, Bf16)) {
    if (hopper_supports(a)) return block_attention_bwd_hopper(a, stream);
  }
  block_attention_bwd_simple(a, stream);
}

template <class T> void causal_attention_fwd_cuda(const CausalAttentionFwd<T>& a, CudaStream stream) {
  if constexpr (__is_same(T, Bf16)) {
    if (hopper_supports(a)) return causal_attention_fwd_hopper(a, stream);
  }
  causal_attention_fwd_simple(a, stream);
}

template void block_attention_fwd_cuda(const BlockAttentionFwd<float>&, CudaStream);
template void block_attention_fwd_cuda(const BlockAttentionFwd<Bf16>&, CudaStream);
template void block_attention_bwd_cuda(const BlockAttentionBwd<float>&, CudaStream);
template void block_attention_bwd_cuda(const BlockAttentionBwd<Bf16>&, CudaStream);
template void causal_attention_fwd_cuda(const CausalAttentionFwd<float>&, CudaStream);
template void causal_attention_fwd_cuda(const CausalAttentionFwd<Bf16>&, CudaStream);

}  // namespace slip
