// The frozen target: packed prefill, forward only, that hands out the residual stream after chosen layers
// (target-models.md 2, 4, 5, 6, 10). It stops after the last tap. src/decode adds cache, final norm and
// logits.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "io/safetensors.hpp"
#include "kernels/attention_cudnn.hpp"
#include "model/packed.hpp"
#include "model/weight_stream.hpp"

namespace slip {

// Matrices are [out, in]; rows that are read together are one matrix: gate|up, and `in` of the mixer:
//   attention        q|k|v, and |gate where its output has one (the file has q and gate head by head)
//   gated delta net  q|k|v|z|b|a, and zeros up to a multiple of 64
template <class T> struct TargetWeights {
  struct Layer {
    const T *input_norm = nullptr, *post_norm = nullptr;
    const T *q_norm = nullptr, *k_norm = nullptr;  // attention; null for Llama
    const T* conv = nullptr;                       // gated delta net: (channels, taps)
    const float *a_log = nullptr, *dt_bias = nullptr, *gated_norm = nullptr;  // fp32 whatever the file has
    View2<const T> in, o, gate_up, down;
  };
  View2<const T> embed;     // (V, H)
  View2<const T> head;      // (V, H): `embed` when tied; empty when not asked for
  const T* norm = nullptr;  // (H): before the head; null when not asked for
  std::vector<Layer> layers;
};

struct TargetParts {
  int64_t layers;  // 0 .. layers-1 are loaded
  bool head;
  bool norm = false;  // the final one
};

// Reads what `parts` names into memory taken from the arena ("target.…"). Every needed tensor is checked for
// presence and shape before the first is read.
template <class T>
TargetWeights<T> load_target(const TargetModel&, const WeightFolder&, const TargetParts&, Arena&,
                             const Queue&, const LoadHooks& = {});
void check_target_tensors(const TargetModel&, const WeightFolder&, const TargetParts&);

// Columns of what `in` of a layer gives.
inline int64_t attention_columns(const TargetModel& m) {
  const int64_t q = m.heads * m.head_dim;
  return (m.attention_gate ? 2 * q : q) + 2 * m.kv_heads * m.head_dim;
}
inline int64_t delta_columns(const TargetModel& m) {
  return (m.delta.channels() + m.delta.values() + 2 * m.delta.value_heads + 63) / 64 * 64;
}

template <class T> struct TargetBuffers {
  RopeTable rope;
  View2<T> x, y;            // (max_tokens, H)
  T* in = nullptr;          // (max_tokens, columns of the layer)
  View2<T> conv;            // (max_tokens, channels): gated delta nets
  T* mixed = nullptr;       // (max_tokens, what the mixer gives)
  View2<T> update;          // (max_tokens, H): what a mixer or an MLP adds to x
  View2<T> gate_up, act;    // (max_tokens, 2 I), (max_tokens, I)
  void* scratch = nullptr;  // of the delta rule
  int64_t scratch_bytes = 0;
};
// positions: of the rotary table; 0: max_tokens.
template <class T>
TargetBuffers<T> make_target_buffers(const TargetModel&, int64_t max_tokens, Arena&, const Queue&,
                                     int64_t positions = 0);

template <class T> struct Target {
  TargetModel model;
  TargetWeights<T> weights;
  TargetBuffers<T> buffers;
  std::unique_ptr<CudnnAttention> cudnn;      // bf16 on a GPU: instead of our attention
  std::function<void(const char* op)> probe;  // for timings: called before every operation is queued
};

inline DeltaShape target_delta(const TargetModel& m) {
  return {static_cast<int>(m.delta.key_heads), static_cast<int>(m.delta.value_heads),
          static_cast<int>(m.delta.key_dim), static_cast<int>(m.delta.value_dim)};
}
inline AttentionShape target_attention(const TargetModel& m) {
  const int d = static_cast<int>(m.head_dim);
  return {.heads = static_cast<int>(m.heads),
          .kv_heads = static_cast<int>(m.kv_heads),
          .head_dim = d,
          .scale = attention_scale(d)};
}
// The delta rule of a layer for its projections and what the convolution made of them; `out` is empty.
template <class T>
GatedDeltaFwd<T> delta_rule(const Target<T>&, int64_t layer, View2<const T> in, View2<const T> conv);
// For the rows that `make_target_buffers` makes room for. Compiles: see kernels/attention_cudnn.hpp.
std::unique_ptr<CudnnAttention> make_cudnn_attention(const TargetModel&, int64_t max_tokens, Arena&);

// on_tap(i, stream): the stream (tokens, H) after layer taps[i] is queued; it is overwritten by what is
// queued after the call returns. Order of calls: ascending layers.
template <class T> using OnTap = std::function<void(int tap, View2<const T> stream)>;
// Where the stream goes as bf16, (tokens, H) contiguous, or null: asked right before on_tap, and written when
// on_tap is called. The norm that completes the stream writes it.
using TapStore = std::function<Bf16*(int tap)>;
template <class T>
void target_forward(const Target<T>&, const Packed&, const std::vector<int64_t>& taps, const Queue&,
                    const OnTap<T>& on_tap, const TapStore& capture = {});

// The same with the caller's attention: it gets layer, normed and rotated q, k|v of the tokens side by side
// (keys rotated), and where the result goes. `cu` and `documents` of Packed are not used.
template <class T>
using Attend = std::function<void(int64_t layer, View2<const T> q, View2<const T> kv, View2<T> out)>;
// And what a gated delta net layer has from the tokens before and leaves for those that follow; asked for
// right before the layer is queued. Without it every document of `delta` starts from nothing.
template <class T> struct DeltaCarry {
  View2<T> in;    // (tokens, columns of the layer): where its projections go; rows before: delta_conv.hpp
  View2<T> conv;  // (tokens, channels): convolved q|k|v
  View2<T> keep;  // (taps - 1, channels): the last projections once more; empty: not wanted
  const Acc<T>* state = nullptr;  // of the delta rule (gated_delta.hpp), before and after
  Acc<T>* state_out = nullptr;
  bool few = false;  // token by token: `delta` of Packed is not read
};
template <class T> using Carry = std::function<DeltaCarry<T>(int64_t layer)>;
template <class T>
void target_layers(const Target<T>&, const Packed&, const std::vector<int64_t>& taps, const Queue&,
                   const Attend<T>&, const OnTap<T>& on_tap, const TapStore& capture = {},
                   const Carry<T>& carry = {});

}  // namespace slip
