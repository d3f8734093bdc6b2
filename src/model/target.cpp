#include "model/target.hpp"

#include <algorithm>
#include <numeric>

#include "kernels/attention.hpp"
#include "kernels/embedding.hpp"
#include "kernels/features.hpp"
#include "kernels/matmul.hpp"
#include "kernels/rmsnorm.hpp"
#include "kernels/swiglu.hpp"
#include "model/weights.hpp"

namespace slip {
namespace {

std::string layer_name(int64_t l, const char* rest) {
  return "model.layers." + std::to_string(l) + "." + rest;
}

// Calls f(name, shape) for every tensor that `parts` needs.
template <class F>
void for_tensors(const TargetModel& m, const WeightFolder& folder, const TargetParts& parts, F&& f) {
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  f(embedding_name(folder), {m.vocab, m.hidden});
  for (int64_t l = 0; l < parts.layers; ++l) {
    f(layer_name(l, "input_layernorm.weight"), {m.hidden});
    f(layer_name(l, "self_attn.q_proj.weight"), {q, m.hidden});
    f(layer_name(l, "self_attn.k_proj.weight"), {kv, m.hidden});
    f(layer_name(l, "self_attn.v_proj.weight"), {kv, m.hidden});
    f(layer_name(l, "self_attn.o_proj.weight"), {m.hidden, q});
    if (m.qk_norm) f(layer_name(l, "self_attn.q_norm.weight"), {m.head_dim});
    if (m.qk_norm) f(layer_name(l, "self_attn.k_norm.weight"), {m.head_dim});
    f(layer_name(l, "post_attention_layernorm.weight"), {m.hidden});
    f(layer_name(l, "mlp.gate_proj.weight"), {m.intermediate, m.hidden});
    f(layer_name(l, "mlp.up_proj.weight"), {m.intermediate, m.hidden});
    f(layer_name(l, "mlp.down_proj.weight"), {m.hidden, m.intermediate});
  }
  if (parts.head && !m.tied) f("lm_head.weight", {m.vocab, m.hidden});
  if (parts.norm) f("model.norm.weight", {m.hidden});
}

}  // namespace

void check_target_tensors(const TargetModel& m, const WeightFolder& folder, const TargetParts& parts) {
  for_tensors(m, folder, parts,
              [&](const std::string& name, const std::vector<int64_t>& shape) { folder.need(name, shape); });
}

template <class T>
TargetWeights<T> load_target(const TargetModel& m, const WeightFolder& folder, const TargetParts& parts,
                             Arena& arena, const Queue& queue) {
  check_target_tensors(m, folder, parts);
  WeightReader<T> reader(folder, queue, arena.measuring());
  // Matrices that lie below one another in memory, read one after the other.
  const auto stack = [&](const std::string& name, const std::vector<std::string>& names, int64_t cols) {
    int64_t rows = 0;
    for (const std::string& n : names) rows += folder.find(n)->shape[0];
    const View2<T> all = arena.take2<T>("target." + name, rows, cols);
    int64_t first = 0;
    for (const std::string& n : names) {
      const int64_t count = folder.find(n)->shape[0];
      reader.read(n, all.rows_from(first, count));
      first += count;
    }
    return View2<const T>(all);
  };
  const auto vector = [&](const std::string& name) {
    T* v = arena.take<T>("target." + name, folder.find(name)->shape[0]);
    reader.read(name, View2<T>(v, 1, folder.find(name)->shape[0]));
    return static_cast<const T*>(v);
  };
  TargetWeights<T> w;
  w.embed = stack("embed", {embedding_name(folder)}, m.hidden);
  for (int64_t l = 0; l < parts.layers; ++l) {
    const auto n = [&](const char* rest) { return layer_name(l, rest); };
    const auto matrix = [&](const char* what, const std::vector<std::string>& names, int64_t cols) {
      return stack("layers." + std::to_string(l) + "." + what, names, cols);
    };
    typename TargetWeights<T>::Layer layer;
    layer.input_norm = vector(n("input_layernorm.weight"));
    layer.post_norm = vector(n("post_attention_layernorm.weight"));
    layer.q_norm = m.qk_norm ? vector(n("self_attn.q_norm.weight")) : nullptr;
    layer.k_norm = m.qk_norm ? vector(n("self_attn.k_norm.weight")) : nullptr;
    layer.qkv = matrix(
        "qkv", {n("self_attn.q_proj.weight"), n("self_attn.k_proj.weight"), n("self_attn.v_proj.weight")},
        m.hidden);
    layer.o = matrix("o", {n("self_attn.o_proj.weight")}, m.heads * m.head_dim);
    layer.gate_up = matrix("gate_up", {n("mlp.gate_proj.weight"), n("mlp.up_proj.weight")}, m.hidden);
    layer.down = matrix("down", {n("mlp.down_proj.weight")}, m.intermediate);
    w.layers.push_back(layer);
  }
  if (parts.head) w.head = m.tied ? w.embed : stack("head", {"lm_head.weight"}, m.hidden);
  if (parts.norm) w.norm = vector("model.norm.weight");
  return w;
}

template <class T>
TargetBuffers<T> make_target_buffers(const TargetModel& m, int64_t max_tokens, Arena& arena,
                                     const Queue& queue, int64_t positions) {
  const char* key = "data.row_tokens";
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  return {.rope = make_rope_table("target.rope", m.rope, m.head_dim, std::max(positions, max_tokens), arena,
                                  queue),
          .x = arena.take2<T>("target.x", max_tokens, m.hidden, key),
          .y = arena.take2<T>("target.y", max_tokens, m.hidden, key),
          .qkv = arena.take2<T>("target.qkv", max_tokens, q + 2 * kv, key),
          .attention = arena.take2<T>("target.attention", max_tokens, q, key),
          .delta = arena.take2<T>("target.delta", max_tokens, m.hidden, key),
          .gate_up = arena.take2<T>("target.gate_up", max_tokens, 2 * m.intermediate, key),
          .act = arena.take2<T>("target.act", max_tokens, m.intermediate, key)};
}

std::unique_ptr<CudnnAttention> make_cudnn_attention(const TargetModel& m, int64_t max_tokens, Arena& arena) {
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  const CudnnAttention::Limits limits{target_attention(m), q + 2 * kv, q, max_tokens};
  return std::make_unique<CudnnAttention>("target.cudnn", limits, arena);
}

template <class T>
void target_forward(const Target<T>& target, const Packed& in, const std::vector<int64_t>& taps,
                    const Queue& queue, const OnTap<T>& on_tap, const TapStore& capture) {
  const AttentionShape shape = target_attention(target.model);
  const int64_t width = target.model.kv_heads * target.model.head_dim;
  const Attend<T> attend = [&](int64_t, View2<const T> q, View2<const T> kv, View2<T> out) {
    causal_attention_fwd<T>({.shape = shape,
                             .q = q,
                             .k = kv.cols_from(0, width),
                             .v = kv.cols_from(width, width),
                             .cu = in.cu,
                             .cu_host = in.cu_host,
                             .documents = in.documents,
                             .out = out},
                            target.cudnn.get(), queue);
  };
  target_layers<T>(target, in, taps, queue, attend, on_tap, capture);
}

template <class T>
void target_layers(const Target<T>& target, const Packed& in, const std::vector<int64_t>& taps,
                   const Queue& queue, const Attend<T>& attend, const OnTap<T>& on_tap,
                   const TapStore& capture) {
  const TargetModel& m = target.model;
  const int heads = static_cast<int>(m.heads), kv_heads = static_cast<int>(m.kv_heads),
            d = static_cast<int>(m.head_dim);
  const int64_t q_width = m.heads * m.head_dim, kv_width = m.kv_heads * m.head_dim;
  const auto rows = [&](const View2<T>& v) { return v.rows_from(0, in.tokens); };
  const TargetBuffers<T>& b = target.buffers;
  const View2<T> x = rows(b.x), y = rows(b.y), qkv = rows(b.qkv), attention = rows(b.attention),
                 delta = rows(b.delta), gate_up = rows(b.gate_up), act = rows(b.act);
  const View2<T> q = qkv.cols_from(0, q_width), k = qkv.cols_from(q_width, kv_width),
                 kv = qkv.cols_from(q_width, 2 * kv_width);
  const int64_t last = *std::max_element(taps.begin(), taps.end());
  require(last < static_cast<int64_t>(target.weights.layers.size()), "target: a tapped layer was not loaded");

  gather_rows<T>({.table = target.weights.embed, .index = in.ids, .out = x}, queue);
  // One norm completes the stream: adds the MLP output of the layer before and writes the first tap of that
  // layer on the way.
  const auto enter = [&](int64_t l, View2<const T> pending) {
    const bool more = l <= last;
    std::vector<int> due;
    for (size_t i = 0; i < taps.size(); ++i) {
      if (taps[i] == l - 1) due.push_back(static_cast<int>(i));
    }
    std::vector<Bf16*> stores;
    for (const int i : due) {
      if (Bf16* const to = capture ? capture(i) : nullptr) stores.push_back(to);
    }
    rmsnorm_fwd<T>({.x = x,
                    .add = pending,
                    .sum = pending.empty() ? View2<T>() : x,
                    .gain = more ? target.weights.layers[static_cast<size_t>(l)].input_norm : nullptr,
                    .eps = m.eps,
                    .y = more ? y : View2<T>(),
                    .inv_rms = nullptr,
                    .capture = stores.empty() ? nullptr : stores[0]},
                   queue);
    for (size_t i = 1; i < stores.size(); ++i)
      cast<T, T, Bf16>({x, View2<Bf16>(stores[i], x.rows, x.cols)}, queue);
    for (const int i : due) on_tap(i, x);
  };
  enter(0, {});
  for (int64_t l = 0; l <= last; ++l) {
    const auto& w = target.weights.layers[static_cast<size_t>(l)];
    matmul<T, T>({Product::nt, y, w.qkv, qkv}, queue);
    head_rope_fwd<T>({.x = q,
                      .heads = heads,
                      .head_dim = d,
                      .gain = w.q_norm,
                      .eps = m.eps,
                      .table = b.rope,
                      .position = in.position,
                      .y = q,
                      .inv_rms = nullptr},
                     queue);
    head_rope_fwd<T>({.x = k,
                      .heads = kv_heads,
                      .head_dim = d,
                      .gain = w.k_norm,
                      .eps = m.eps,
                      .table = b.rope,
                      .position = in.position,
                      .y = k,
                      .inv_rms = nullptr},
                     queue);
    attend(l, q, kv, attention);
    matmul<T, T>({Product::nt, attention, w.o, delta}, queue);
    rmsnorm_fwd<T>(
        {.x = x, .add = delta, .sum = x, .gain = w.post_norm, .eps = m.eps, .y = y, .inv_rms = nullptr},
        queue);
    matmul<T, T>({Product::nt, y, w.gate_up, gate_up}, queue);
    swiglu_fwd<T>({.gate_up = gate_up, .act = act}, queue);
    matmul<T, T>({Product::nt, act, w.down, delta}, queue);
    enter(l + 1, delta);
  }
}

#define SLIP_INSTANTIATE(T)                                                                                  \
  template TargetWeights<T> load_target(const TargetModel&, const WeightFolder&, const TargetParts&, Arena&, \
                                        const Queue&);                                                       \
  template TargetBuffers<T> make_target_buffers(const TargetModel&, int64_t, Arena&, const Queue&, int64_t); \
  template void target_layers(const Target<T>&, const Packed&, const std::vector<int64_t>&, const Queue&,    \
                              const Attend<T>&, const OnTap<T>&, const TapStore&);                           \
  template void target_forward(const Target<T>&, const Packed&, const std::vector<int64_t>&, const Queue&,   \
                               const OnTap<T>&, const TapStore&);
SLIP_INSTANTIATE(float)
#if SLIP_HAVE_CUDA
SLIP_INSTANTIATE(Bf16)
#endif

}  // namespace slip
