// The frozen target: packed prefill, forward only, that hands out the residual stream after chosen layers
// (target-models.md 2, 4, 5, 10). No KV cache, no logits, no final norm; it stops after the last tap.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "io/safetensors.hpp"
#include "kernels/attention_cudnn.hpp"
#include "model/packed.hpp"

namespace slip {

// Matrices are [out, in]; rows that are read together are one matrix: q|k|v and gate|up.
template <class T> struct TargetWeights {
  struct Layer {
    const T *input_norm, *post_norm, *q_norm, *k_norm;  // q_norm and k_norm null for Llama
    View2<const T> qkv, o, gate_up, down;
  };
  View2<const T> embed;  // (V, H)
  View2<const T> head;   // (V, H): `embed` when tied; empty when not asked for
  std::vector<Layer> layers;
};

struct TargetParts {
  int64_t layers;  // 0 .. layers-1 are loaded
  bool head;
};

// Reads what `parts` names into memory taken from the arena ("target.…"). Every needed tensor is checked for presence
// and shape before the first is read.
template <class T>
TargetWeights<T> load_target(const TargetModel&, const WeightFolder&, const TargetParts&, Arena&, const Queue&);
void check_target_tensors(const TargetModel&, const WeightFolder&, const TargetParts&);

template <class T> struct TargetBuffers {
  RopeTable rope;
  View2<T> x, y, qkv, attention, delta, gate_up, act;  // (max_tokens, …)
};
template <class T> TargetBuffers<T> make_target_buffers(const TargetModel&, int64_t max_tokens, Arena&, const Queue&);

template <class T> struct Target {
  TargetModel model;
  TargetWeights<T> weights;
  TargetBuffers<T> buffers;
  std::unique_ptr<CudnnAttention> cudnn;  // bf16 on a GPU: instead of our attention
};

inline AttentionShape target_attention(const TargetModel& m) {
  const int d = static_cast<int>(m.head_dim);
  return {.heads = static_cast<int>(m.heads), .kv_heads = static_cast<int>(m.kv_heads), .head_dim = d, .scale = attention_scale(d)};
}
// For the rows that `make_target_buffers` makes room for. Compiles: see kernels/attention_cudnn.hpp.
std::unique_ptr<CudnnAttention> make_cudnn_attention(const TargetModel&, int64_t max_tokens, Arena&);

// on_tap(i, stream): the stream (tokens, H) after layer taps[i] is queued; it is overwritten by what is queued after
// the call returns. Order of calls: ascending layers.
template <class T>
void target_forward(const Target<T>&, const Packed&, const std::vector<int64_t>& taps, const Queue&,
                    const std::function<void(int, View2<const T>)>& on_tap);

}  // namespace slip
