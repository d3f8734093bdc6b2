#include "model/target.hpp"

#include <algorithm>

#include "kernels/attention.hpp"
#include "kernels/delta_conv.hpp"
#include "kernels/embedding.hpp"
#include "kernels/features.hpp"
#include "kernels/few_rows.hpp"
#include "kernels/matmul.hpp"
#include "kernels/output_gate.hpp"
#include "kernels/rmsnorm.hpp"
#include "kernels/swiglu.hpp"

namespace slip {
namespace {

template <class T> void probe(const Target<T>& target, const char* op) {
  if (target.probe) target.probe(op);
}

// `in` holds q|k|v and, where the model has it, |gate; it is normed and rotated in place.
template <class T>
void attention_layer(const Target<T>& target, int64_t l, const Packed& p, View2<T> in, View2<T> mixed,
                     const Attend<T>& attend, const Queue& queue) {
  const TargetModel& m = target.model;
  const auto& w = target.weights.layers[static_cast<size_t>(l)];
  const int64_t q_width = m.heads * m.head_dim, kv_width = m.kv_heads * m.head_dim;
  const View2<T> q = in.cols_from(0, q_width), kv = in.cols_from(q_width, 2 * kv_width);
  const View2<T> qk = in.cols_from(0, q_width + kv_width);
  probe(target, "head_rope");
  head_rope_fwd<T>({.x = qk,
                    .heads = static_cast<int>(m.heads),
                    .head_dim = static_cast<int>(m.head_dim),
                    .gain = w.q_norm,
                    .eps = m.eps,
                    .table = target.buffers.rope,
                    .position = p.position,
                    .y = qk,
                    .inv_rms = nullptr,
                    .centred = m.centred_norms,
                    .more_heads = static_cast<int>(m.kv_heads),
                    .more_gain = w.k_norm},
                   queue);
  probe(target, "attention");
  attend(l, q, kv, mixed);
  if (!m.attention_gate) return;
  probe(target, "output_gate");
  output_gate_fwd<T>({mixed, in.cols_from(q_width + 2 * kv_width, q_width), mixed}, queue);
}

// `c.in` holds q|k|v|z|b|a.
template <class T>
void delta_layer(const Target<T>& target, int64_t l, const Packed& p, const DeltaCarry<T>& c, View2<T> mixed,
                 const Queue& queue) {
  const DeltaNetConfig& d = target.model.delta;
  const auto& w = target.weights.layers[static_cast<size_t>(l)];
  const TargetBuffers<T>& b = target.buffers;
  const View2<T> in = c.in, conv = c.conv;
  probe(target, "delta_conv");
  delta_conv_fwd<T>({.x = in.cols_from(0, d.channels()),
                     .taps = w.conv,
                     .tap_count = static_cast<int>(d.taps),
                     .head_dim = static_cast<int>(d.key_dim),
                     .normed = 2 * d.keys(),
                     .position = p.position,
                     .y = conv},
                    queue);
  if (!c.keep.empty()) {
    const int64_t rows = c.keep.rows;
    cast<T, T, T>({in.rows_from(p.tokens - rows, rows).cols_from(0, d.channels()), c.keep}, queue);
  }
  probe(target, "gated_delta");
  GatedDeltaFwd<T> rule = delta_rule<T>(target, l, in, conv);
  rule.row = p.delta;
  rule.out = mixed;
  rule.scratch = b.scratch;
  rule.scratch_bytes = b.scratch_bytes;
  rule.state = c.state;
  rule.state_out = c.state_out;
  c.few ? gated_delta_step<T>(rule, queue) : gated_delta_fwd<T>(rule, queue);
  probe(target, "gated_norm");
  gated_norm_fwd<T>({.x = mixed,
                     .gate = in.cols_from(d.channels(), d.values()),
                     .heads = static_cast<int>(d.value_heads),
                     .head_dim = static_cast<int>(d.value_dim),
                     .gain = w.gated_norm,
                     .eps = target.model.eps,
                     .sigmoid = d.sigmoid_gate,
                     .y = mixed},
                    queue);
}

}  // namespace

template <class T>
GatedDeltaFwd<T> delta_rule(const Target<T>& target, int64_t l, View2<const T> in, View2<const T> conv) {
  const DeltaNetConfig& d = target.model.delta;
  const auto& w = target.weights.layers[static_cast<size_t>(l)];
  const int64_t beta = d.channels() + d.values(), alpha = beta + d.value_heads;
  return {.shape = target_delta(target.model),
          .q = conv.cols_from(0, d.keys()),
          .k = conv.cols_from(d.keys(), d.keys()),
          .v = conv.cols_from(2 * d.keys(), d.values()),
          .a = in.cols_from(alpha, d.value_heads),
          .b = in.cols_from(beta, d.value_heads),
          .a_log = w.a_log,
          .dt_bias = w.dt_bias,
          .row = {},
          .out = {},
          .scratch = nullptr,
          .scratch_bytes = 0};
}

template <class T>
TargetBuffers<T> make_target_buffers(const TargetModel& m, int64_t max_tokens, Arena& arena,
                                     const Queue& queue, int64_t positions) {
  const char* key = "data.row_tokens";
  const bool hybrid = !m.linear.empty();
  const int64_t q = m.heads * m.head_dim;
  const int64_t in = std::max(attention_columns(m), hybrid ? delta_columns(m) : 0),
                mixed = std::max(q, hybrid ? m.delta.values() : 0);
  TargetBuffers<T> b{.rope = make_rope_table("target.rope", m.rope, m.head_dim,
                                             std::max(positions, max_tokens), arena, queue),
                     .x = arena.take2<T>("target.x", max_tokens, m.hidden, key),
                     .y = arena.take2<T>("target.y", max_tokens, m.hidden, key),
                     .in = arena.take<T>("target.in", max_tokens * in, key),
                     .mixed = arena.take<T>("target.mixed", max_tokens * mixed, key),
                     .update = arena.take2<T>("target.update", max_tokens, m.hidden, key),
                     .gate_up = arena.take2<T>("target.gate_up", max_tokens, 2 * m.intermediate, key),
                     .act = arena.take2<T>("target.act", max_tokens, m.intermediate, key)};
  if (hybrid) {
    b.conv = arena.take2<T>("target.conv", max_tokens, m.delta.channels(), key);
    b.scratch_bytes = gated_delta_scratch<T>(target_delta(m), max_tokens, queue.device);
    b.scratch = arena.take<uint8_t>("target.delta_scratch", b.scratch_bytes, key);
  }
  return b;
}

std::unique_ptr<CudnnAttention> make_cudnn_attention(const TargetModel& m, int64_t max_tokens, Arena& arena) {
  const CudnnAttention::Limits limits{target_attention(m), attention_columns(m), m.heads * m.head_dim,
                                      max_tokens};
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
                   const TapStore& capture, const Carry<T>& carry) {
  const TargetModel& m = target.model;
  const auto rows = [&](const View2<T>& v) { return v.rows_from(0, in.tokens); };
  const TargetBuffers<T>& b = target.buffers;
  const View2<T> x = rows(b.x), y = rows(b.y), update = rows(b.update), gate_up = rows(b.gate_up),
                 act = rows(b.act);
  const int64_t last = *std::max_element(taps.begin(), taps.end());
  require(last < static_cast<int64_t>(target.weights.layers.size()), "target: a tapped layer was not loaded");
  // x + add, and of that y where a gain is given
  const auto add_and_norm = [&](View2<const T> add, const T* gain, Bf16* store) {
    probe(target, "norm");
    rmsnorm_fwd<T>({.x = x,
                    .add = add,
                    .sum = add.empty() ? View2<T>() : x,
                    .gain = gain,
                    .eps = m.eps,
                    .y = gain == nullptr ? View2<T>() : y,
                    .inv_rms = nullptr,
                    .centred = m.centred_norms,
                    .capture = store},
                   queue);
  };
  const auto product = [&](const char* op, View2<const T> from, View2<const T> weight, View2<T> to) {
    probe(target, op);
    matmul<T, T>({.form = Product::nt, .a = from, .b = weight, .c = to, .b_settled = true}, queue);
  };

  probe(target, "embedding");
  gather_rows<T>({.table = target.weights.embed, .index = in.ids, .out = x}, queue);
  // One norm completes the stream: adds the MLP output of the layer before and writes the first tap of that
  // layer on the way.
  const auto enter = [&](int64_t l, View2<const T> pending) {
    std::vector<int> due;
    for (size_t i = 0; i < taps.size(); ++i) {
      if (taps[i] == l - 1) due.push_back(static_cast<int>(i));
    }
    std::vector<Bf16*> stores;
    for (const int i : due) {
      if (Bf16* const to = capture ? capture(i) : nullptr) stores.push_back(to);
    }
    add_and_norm(pending, l <= last ? target.weights.layers[static_cast<size_t>(l)].input_norm : nullptr,
                 stores.empty() ? nullptr : stores[0]);
    for (size_t i = 1; i < stores.size(); ++i)
      cast<T, T, Bf16>({x, View2<Bf16>(stores[i], x.rows, x.cols)}, queue);
    for (const int i : due) on_tap(i, x);
  };
  enter(0, {});
  for (int64_t l = 0; l <= last; ++l) {
    const auto& w = target.weights.layers[static_cast<size_t>(l)];
    const View2<T> projected(b.in, in.tokens, w.in.rows), mixed(b.mixed, in.tokens, w.o.cols);
    if (m.is_linear(l)) {
      const DeltaCarry<T> c = carry ? carry(l) : DeltaCarry<T>{.in = projected, .conv = rows(b.conv)};
      product("in", y, w.in, c.in);
      delta_layer(target, l, in, c, mixed, queue);
    } else {
      product("in", y, w.in, projected);
      attention_layer(target, l, in, projected, mixed, attend, queue);
    }
    product("o", mixed, w.o, update);
    add_and_norm(update, w.post_norm, nullptr);
    if (!few_rows_swiglu<T>({.a = y, .b = w.gate_up, .act = act, .b_settled = true}, queue)) {
      product("gate_up", y, w.gate_up, gate_up);
      probe(target, "swiglu");
      swiglu_fwd<T>({.gate_up = gate_up, .act = act}, queue);
    }
    product("down", act, w.down, update);
    enter(l + 1, update);
  }
}

#define SLIP_INSTANTIATE(T)                                                                                  \
  template TargetBuffers<T> make_target_buffers(const TargetModel&, int64_t, Arena&, const Queue&, int64_t); \
  template void target_layers(const Target<T>&, const Packed&, const std::vector<int64_t>&, const Queue&,    \
                              const Attend<T>&, const OnTap<T>&, const TapStore&, const Carry<T>&);          \
  template GatedDeltaFwd<T> delta_rule(const Target<T>&, int64_t, View2<const T>, View2<const T>);           \
  template void target_forward(const Target<T>&, const Packed&, const std::vector<int64_t>&, const Queue&,   \
                               const OnTap<T>&, const TapStore&);
SLIP_INSTANTIATE(float)
#if SLIP_HAVE_CUDA
SLIP_INSTANTIATE(Bf16)
#endif

}  // namespace slip
