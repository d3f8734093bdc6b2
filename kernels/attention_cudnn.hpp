// cuDNN's causal attention of packed documents in bf16: an opt-in for the target (target.attention=cudnn) and
// the second oracle of the tests. Not the default, because cuDNN compiles the kernel while the program runs
// (NVRTC): here, in the constructor. Also there in a build without cuDNN, which has no attention that can be
// constructed.
#pragma once
#include <memory>
#include <string>

#include "device/arena.hpp"
#include "kernels/attention.hpp"

namespace slip {

// Why cuDNN cannot compute this shape, in this build and with the library that is loaded; empty: it can.
std::string cudnn_attention_problem(const AttentionShape&);
std::string cudnn_version();  // of the library that is loaded: "9.19.0"; empty in a build without cuDNN

class CudnnAttention {
 public:
  struct Limits {
    AttentionShape shape;
    int64_t qkv_stride;  // elements between tokens: q, k and v are slices of one matrix
    int64_t out_stride;
    int64_t max_tokens;  // of all documents together; any number of them, of any length
  };
  // Compiles for the current device, unless the arena measures: then it must not be called.
  CudnnAttention(const std::string& name, const Limits&, Arena&);
  void forward(const CausalAttentionFwd<Bf16>&,
               const Queue&) const;  // a multiple of 16 bytes: every address, every row

  double build_seconds() const;
  int64_t workspace_bytes() const;

 private:
  struct State;
  struct Closer {
    void operator()(State*) const noexcept;
  };
  std::unique_ptr<State, Closer> state_;
};

// cuDNN's where there is one, else ours.
template <class T>
void causal_attention_fwd(const CausalAttentionFwd<T>& a, const CudnnAttention* cudnn, const Queue& q) {
  if constexpr (__is_same(T, Bf16)) {
    if (cudnn != nullptr) return cudnn->forward(a, q);
  }
  causal_attention_fwd(a, q);
}

// What cuDNN reads of a packing: each document's length and where its rows begin, in elements. Documents past
// the last are empty.
struct CudnnPacking {
  const int* cu;  // (documents + 1)
  int documents, count;
  int64_t qkv_stride, out_stride;
  int* lengths;                // (count)
  int *qkv_begin, *out_begin;  // (count + 1)
};
void cudnn_packing_cuda(const CudnnPacking&, CudaStream);

}  // namespace slip
