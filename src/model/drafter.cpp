#include "model/drafter.hpp"

#include <algorithm>

#include "kernels/attention.hpp"
#include "kernels/blas.hpp"
#include "kernels/embedding.hpp"
#include "kernels/features.hpp"
#include "kernels/few_rows.hpp"
#include "kernels/matmul.hpp"
#include "kernels/rmsnorm.hpp"
#include "kernels/swiglu.hpp"

namespace slip {
namespace {

struct Widths {
  int64_t h, q, kv;
  int heads, kv_heads, d;
};
Widths widths(const DrafterModel& m) {
  return {m.hidden,
          m.heads * m.head_dim,
          m.kv_heads * m.head_dim,
          static_cast<int>(m.heads),
          static_cast<int>(m.kv_heads),
          static_cast<int>(m.head_dim)};
}

AttentionShape layer_shape(const DrafterModel& m, size_t l) {
  const Widths n = widths(m);
  return {.heads = n.heads,
          .kv_heads = n.kv_heads,
          .head_dim = n.d,
          .scale = attention_scale(n.d),
          .block = static_cast<int>(m.block),
          .window = m.sliding[l] ? static_cast<int>(m.window) : 0,
          .causal = m.causal[l]};
}

// Rows of fc whose gradients are one product.
constexpr int64_t kFcPieces = 4;
int64_t fc_rows(int64_t hidden) { return (hidden + 8 * kFcPieces - 1) / (8 * kFcPieces) * 8; }

// Columns of layer l in the matrices that hold all layers side by side.
template <class V> V layer_keys(const V& kv, const Widths& n, size_t l) {
  return kv.cols_from(static_cast<int64_t>(l) * 2 * n.kv, n.kv);
}
template <class V> V layer_values(const V& kv, const Widths& n, size_t l) {
  return kv.cols_from(static_cast<int64_t>(l) * 2 * n.kv + n.kv, n.kv);
}

template <class T> ContextBuffers<T> make_context(const DrafterModel& m, int64_t tokens, Arena& a) {
  const Widths n = widths(m);
  const char* key = "data.row_tokens";
  ContextBuffers<T> c;
  c.x = a.take2<T>("drafter.context.x", tokens, static_cast<int64_t>(m.taps.size()) * n.h, key);
  c.fc = a.take2<T>("drafter.context.fc", tokens, n.h, key);
  c.c = a.take2<T>("drafter.context.c", tokens, n.h, key);
  c.inv_rms = a.take<Acc<T>>("drafter.context.inv_rms", tokens, key);
  c.kv = a.take2<T>("drafter.context.kv", tokens, m.layers * 2 * n.kv, key);
  c.k = a.take2<T>("drafter.context.k", tokens, m.layers * n.kv, key);
  c.k_inv_rms = a.take<Acc<T>>("drafter.context.k_inv_rms", m.layers * tokens * m.kv_heads, key);
  c.dkv = a.take2<Acc<T>>("drafter.context.dkv", tokens, m.layers * 2 * n.kv, key);
  if constexpr (std::is_same_v<T, Acc<T>>) {
    c.dkv_project = c.dkv;  // same type: rotated back in place
  } else {
    c.dkv_project = a.take2<T>("drafter.context.dkv_project", tokens, m.layers * 2 * n.kv, key);
  }
  c.dc = a.take2<T>("drafter.context.dc", tokens, n.h, key);
  return c;
}

template <class T>
BlockBuffers<T> make_blocks(const DrafterModel& m, const DrafterLimits& limits, Device device, Arena& a) {
  const Widths n = widths(m);
  const int64_t rows = limits.blocks * m.block;
  const char* key = "train.blocks_per_pass";
  const auto matrix = [&](const std::string& name, int64_t cols) {
    return a.take2<T>("drafter." + name, rows, cols, key);
  };
  const auto vector = [&](const std::string& name, int64_t per_row) {
    return a.take<Acc<T>>("drafter." + name, rows * per_row, key);
  };
  BlockBuffers<T> b;
  int64_t scratch =
      std::max({rmsnorm_bwd_scratch(rows, n.h, device), rmsnorm_bwd_scratch(limits.context, n.h, device),
                head_rope_bwd_scratch(rows, n.heads, n.d, device),
                head_rope_bwd_scratch(limits.context, n.kv_heads, n.d, device)});
  for (int64_t l = 0; l < m.layers; ++l) {
    const std::string p = "layers." + std::to_string(l) + ".";
    b.layers.push_back({.z = matrix(p + "z", n.h),
                        .u = matrix(p + "u", n.h),
                        .q_project = matrix(p + "q_project", n.q),
                        .kv = matrix(p + "kv", 2 * n.kv),
                        .q = matrix(p + "q", n.q),
                        .k = matrix(p + "k", n.kv),
                        .attention = matrix(p + "attention", n.q),
                        .z_mid = matrix(p + "z_mid", n.h),
                        .y = matrix(p + "y", n.h),
                        .gate_up = matrix(p + "gate_up", 2 * m.intermediate),
                        .inv_rms = vector(p + "inv_rms", 1),
                        .q_inv_rms = vector(p + "q_inv_rms", m.heads),
                        .k_inv_rms = vector(p + "k_inv_rms", m.kv_heads),
                        .mid_inv_rms = vector(p + "mid_inv_rms", 1),
                        .lse = vector(p + "lse", m.heads)});
    scratch = std::max(scratch, block_attention_bwd_scratch(layer_shape(m, static_cast<size_t>(l)),
                                                            limits.blocks, limits.context, device));
  }
  b.z_out = matrix("z_out", n.h);
  b.hidden = matrix("hidden", n.h);
  b.inv_rms = vector("inv_rms", 1);
  b.delta = matrix("delta", n.h);
  b.act = matrix("act", m.intermediate);
  b.dhidden = matrix("dhidden", n.h);
  b.dattention = matrix("dattention", n.q);
  b.dq = matrix("dq", n.q);
  b.dkv = matrix("dkv", 2 * n.kv);
  b.scratch = a.take<Acc<T>>("drafter.scratch", scratch, key);
  return b;
}

}  // namespace

template <class T>
Drafter<T> make_drafter(const DrafterModel& m, const DrafterLimits& limits, Arena& a, const Queue& queue) {
  Drafter<T> d{.model = m, .limits = limits, .layout = parameter_layout(m)};
  d.weights = a.take<T>("drafter.weights", d.layout.count);
  d.grads = a.take<Acc<T>>("drafter.grads", d.layout.count);
  d.w = drafter_views<T>(m, d.layout, d.weights);
  d.g = drafter_views<Acc<T>>(m, d.layout, d.grads);
  d.rope = make_rope_table("drafter.rope", m.rope, m.head_dim, limits.positions, a, queue);
  d.context = make_context<T>(m, limits.context, a);
  d.blocks = make_blocks<T>(m, limits, queue.device, a);
  return d;
}

template <class T> void set_weights(Drafter<T>& d, const std::vector<float>& flat, const Queue& queue) {
  require(static_cast<int64_t>(flat.size()) == d.layout.count, "set_weights: wrong number of values");
  std::vector<T> typed(flat.size());
  std::transform(flat.begin(), flat.end(), typed.begin(), [](float x) { return from_float<T>(x); });
  copy_to_device(d.weights, typed.data(), d.layout.count * static_cast<int64_t>(sizeof(T)), queue);
  synchronize(queue);
}

template <class T>
void context_extend(Drafter<T>& d, int64_t first, int64_t count, const int* position, const Queue& queue) {
  require(first + count <= d.limits.context, "context_extend: more tokens than the drafter was made for");
  if (count == 0) return;
  const Widths n = widths(d.model);
  const auto rows = [&](const auto& v) { return v.rows_from(0, count); };
  ContextBuffers<T>& c = d.context;
  const View2<T> kv = c.kv.rows_from(first, count), keys = c.k.rows_from(first, count);
  const bool frozen = d.grads == nullptr;
  matmul<T, T>({.form = Product::nt, .a = rows(c.x), .b = d.w.fc, .c = rows(c.fc), .b_settled = frozen},
               queue);
  rmsnorm_fwd<T>(
      {.x = rows(c.fc), .gain = d.w.hidden_norm, .eps = d.model.eps, .y = rows(c.c), .inv_rms = c.inv_rms},
      queue);
  matmul<T, T>({.form = Product::nt, .a = rows(c.c), .b = d.w.kv_all, .c = kv, .b_settled = frozen}, queue);
  for (size_t l = 0; l < d.w.layers.size(); ++l) {
    const int64_t i = static_cast<int64_t>(l);
    Acc<T>* const inv_rms =
        c.k_inv_rms == nullptr ? nullptr : c.k_inv_rms + (i * d.limits.context + first) * n.kv_heads;
    head_rope_fwd<T>({.x = layer_keys(kv, n, l),
                      .heads = n.kv_heads,
                      .head_dim = n.d,
                      .gain = d.w.layers[l].k_norm,
                      .eps = d.model.eps,
                      .table = d.rope,
                      .position = position,
                      .y = keys.cols_from(i * n.kv, n.kv),
                      .inv_rms = inv_rms},
                     queue);
  }
}

template <class T>
void context_forward(Drafter<T>& d, int64_t tokens, const int* position, const Queue& queue) {
  if (tokens == 0) return;  // every anchor is the first token of its row
  context_extend(d, 0, tokens, position, queue);
  zero(d.context.dkv.data, tokens * d.context.dkv.cols * static_cast<int64_t>(sizeof(Acc<T>)), queue);
}

template <class T>
void blocks_forward(Drafter<T>& d, const Blocks& in, int64_t tokens, View2<const T> embed,
                    const Queue& queue) {
  require(in.count <= d.limits.blocks, "blocks_forward: more blocks than the drafter was made for");
  const Widths n = widths(d.model);
  const float eps = d.model.eps;
  const auto rows = [&](const View2<T>& v) { return v.rows_from(0, in.count * d.model.block); };
  const auto context = [&](const View2<T>& v) { return v.rows_from(0, tokens); };
  const bool frozen = d.grads == nullptr;
  const auto product = [&](View2<const T> from, View2<const T> weight, View2<T> to) {
    matmul<T, T>({.form = Product::nt, .a = from, .b = weight, .c = to, .b_settled = frozen}, queue);
  };
  BlockBuffers<T>& b = d.blocks;
  View2<T> z = rows(b.layers[0].z);
  gather_rows<T>({.table = embed, .index = in.ids, .out = z}, queue);
  rmsnorm_fwd<T>({.x = z,
                  .gain = d.w.layers[0].input_norm,
                  .eps = eps,
                  .y = rows(b.layers[0].u),
                  .inv_rms = b.layers[0].inv_rms},
                 queue);
  for (size_t l = 0; l < b.layers.size(); ++l) {
    const LayerBuffers<T>& s = b.layers[l];
    const auto& w = d.w.layers[l];
    product(rows(s.u), w.q, rows(s.q_project));
    product(rows(s.u), w.kv, rows(s.kv));
    head_rope_fwd<T>({.x = rows(s.q_project),
                      .heads = n.heads,
                      .head_dim = n.d,
                      .gain = w.q_norm,
                      .eps = eps,
                      .table = d.rope,
                      .position = in.position,
                      .y = rows(s.q),
                      .inv_rms = s.q_inv_rms},
                     queue);
    head_rope_fwd<T>({.x = rows(s.kv).cols_from(0, n.kv),
                      .heads = n.kv_heads,
                      .head_dim = n.d,
                      .gain = w.k_norm,
                      .eps = eps,
                      .table = d.rope,
                      .position = in.position,
                      .y = rows(s.k),
                      .inv_rms = s.k_inv_rms},
                     queue);
    block_attention_fwd<T>({.shape = layer_shape(d.model, l),
                            .q = rows(s.q),
                            .k_context = context(d.context.k).cols_from(static_cast<int64_t>(l) * n.kv, n.kv),
                            .v_context = layer_values(context(d.context.kv), n, l),
                            .k_block = rows(s.k),
                            .v_block = rows(s.kv).cols_from(n.kv, n.kv),
                            .anchor = in.anchor,
                            .lo = in.lo,
                            .out = rows(s.attention),
                            .lse = s.lse,
                            .scratch = frozen ? b.scratch : nullptr},
                           queue);
    product(rows(s.attention), w.o, rows(b.delta));
    rmsnorm_fwd<T>({.x = z,
                    .add = rows(b.delta),
                    .sum = rows(s.z_mid),
                    .gain = w.post_norm,
                    .eps = eps,
                    .y = rows(s.y),
                    .inv_rms = s.mid_inv_rms},
                   queue);
    if (!frozen || !few_rows_swiglu<T>({rows(s.y), w.gate_up, rows(b.act), true}, queue)) {
      product(rows(s.y), w.gate_up, rows(s.gate_up));  // which the backward pass reads
      swiglu_fwd<T>({.gate_up = rows(s.gate_up), .act = rows(b.act)}, queue);
    }
    product(rows(b.act), w.down, rows(b.delta));
    const bool last = l + 1 == b.layers.size();
    z = rows(last ? b.z_out : b.layers[l + 1].z);
    rmsnorm_fwd<T>({.x = rows(s.z_mid),
                    .add = rows(b.delta),
                    .sum = z,
                    .gain = last ? d.w.norm : d.w.layers[l + 1].input_norm,
                    .eps = eps,
                    .y = rows(last ? b.hidden : b.layers[l + 1].u),
                    .inv_rms = last ? b.inv_rms : b.layers[l + 1].inv_rms},
                   queue);
  }
}

template <class T>
void blocks_backward(Drafter<T>& d, const Blocks& in, int64_t tokens, const Queue& queue,
                     const OnReady& on_ready) {
  using A = Acc<T>;
  const Widths n = widths(d.model);
  const auto rows = [&](const View2<T>& v) { return v.rows_from(0, in.count * d.model.block); };
  const auto context = [&](const auto& v) { return v.rows_from(0, tokens); };
  BlockBuffers<T>& b = d.blocks;
  // dy takes dhidden's place once dz, the gradient of the stream, is computed from it.
  const View2<T> dz = rows(b.delta), dy = rows(b.dhidden), act = rows(b.act), dkv = rows(b.dkv);
  rmsnorm_bwd<T>({.x = rows(b.z_out),
                  .gain = d.w.norm,
                  .inv_rms = b.inv_rms,
                  .dy = rows(b.dhidden),
                  .dx = dz,
                  .dgain = d.g.norm,
                  .scratch = b.scratch},
                 queue);
  for (size_t l = b.layers.size(); l-- > 0;) {
    const LayerBuffers<T>& s = b.layers[l];
    const auto& w = d.w.layers[l];
    const auto& g = d.g.layers[l];
    // MLP: dz is the gradient of z_mid + act Wd^T. Gradients take the activations' places.
    matmul<T, T>({Product::nn, dz, w.down, act}, queue);
    const View2<T> dgate_up = rows(s.gate_up);
    swiglu_bwd<T>({.gate_up = dgate_up, .dact = act, .dgate_up = dgate_up, .act = act}, queue);
    matmul<T, A>({Product::tn, dz, act, g.down, true}, queue);
    matmul<T, T>({Product::nn, dgate_up, w.gate_up, dy}, queue);
    matmul<T, A>({Product::tn, dgate_up, rows(s.y), g.gate_up, true}, queue);
    rmsnorm_bwd<T>({.x = rows(s.z_mid),
                    .gain = w.post_norm,
                    .inv_rms = s.mid_inv_rms,
                    .dy = dy,
                    .residual = dz,
                    .dx = dz,
                    .dgain = g.post_norm,
                    .scratch = b.scratch},
                   queue);
    // Attention: dz is the gradient of z + O Wo^T.
    matmul<T, T>({Product::nn, dz, w.o, rows(b.dattention)}, queue);
    matmul<T, A>({Product::tn, dz, rows(s.attention), g.o, true}, queue);
    if (on_ready) on_ready(g.o.data - d.grads);
    block_attention_bwd<T>({.shape = layer_shape(d.model, l),
                            .q = rows(s.q),
                            .k_context = context(d.context.k).cols_from(static_cast<int64_t>(l) * n.kv, n.kv),
                            .v_context = layer_values(context(d.context.kv), n, l),
                            .k_block = rows(s.k),
                            .v_block = rows(s.kv).cols_from(n.kv, n.kv),
                            .anchor = in.anchor,
                            .lo = in.lo,
                            .out = rows(s.attention),
                            .dout = rows(b.dattention),
                            .lse = s.lse,
                            .dq = rows(b.dq),
                            .dk_block = dkv.cols_from(0, n.kv),
                            .dv_block = dkv.cols_from(n.kv, n.kv),
                            .dk_context = layer_keys(context(d.context.dkv), n, l),
                            .dv_context = layer_values(context(d.context.dkv), n, l),
                            .scratch = b.scratch,
                            .leave_multiprocessors = left_multiprocessors(queue)},
                           queue);
    head_rope_bwd<T, T>({.x = rows(s.q_project),
                         .heads = n.heads,
                         .head_dim = n.d,
                         .gain = w.q_norm,
                         .inv_rms = s.q_inv_rms,
                         .table = d.rope,
                         .position = in.position,
                         .dy = rows(b.dq),
                         .dx = rows(b.dq),
                         .dgain = g.q_norm,
                         .scratch = b.scratch},
                        queue);
    head_rope_bwd<T, T>({.x = rows(s.kv).cols_from(0, n.kv),
                         .heads = n.kv_heads,
                         .head_dim = n.d,
                         .gain = w.k_norm,
                         .inv_rms = s.k_inv_rms,
                         .table = d.rope,
                         .position = in.position,
                         .dy = dkv.cols_from(0, n.kv),
                         .dx = dkv.cols_from(0, n.kv),
                         .dgain = g.k_norm,
                         .scratch = b.scratch},
                        queue);
    matmul<T, T>({Product::nn, rows(b.dq), w.q, dy}, queue);
    matmul<T, T>({Product::nn, dkv, w.kv, dy, true}, queue);
    matmul<T, A>({Product::tn, rows(b.dq), rows(s.u), g.q, true}, queue);
    matmul<T, A>({Product::tn, dkv, rows(s.u), g.kv, true}, queue);
    // The embedding is frozen: below layer 0 only the norm's gain is wanted.
    rmsnorm_bwd<T>({.x = rows(s.z),
                    .gain = w.input_norm,
                    .inv_rms = s.inv_rms,
                    .dy = dy,
                    .residual = l > 0 ? dz : View2<T>(),
                    .dx = l > 0 ? dz : View2<T>(),
                    .dgain = g.input_norm,
                    .scratch = b.scratch},
                   queue);
    if (on_ready) on_ready(g.input_norm - d.grads);
  }
}

template <class T>
void context_backward(Drafter<T>& d, int64_t tokens, const int* position, const Queue& queue,
                      const OnReady& on_ready) {
  using A = Acc<T>;
  if (tokens == 0) return;
  const Widths n = widths(d.model);
  const auto rows = [&](const auto& v) { return v.rows_from(0, tokens); };
  ContextBuffers<T>& c = d.context;
  for (size_t l = 0; l < d.w.layers.size(); ++l) {
    head_rope_bwd<T, A>({.x = layer_keys(rows(c.kv), n, l),
                         .heads = n.kv_heads,
                         .head_dim = n.d,
                         .gain = d.w.layers[l].k_norm,
                         .inv_rms = c.k_inv_rms + static_cast<int64_t>(l) * d.limits.context * n.kv_heads,
                         .table = d.rope,
                         .position = position,
                         .dy = layer_keys(rows(c.dkv), n, l),
                         .dx = layer_keys(rows(c.dkv_project), n, l),
                         .dgain = d.g.layers[l].k_norm,
                         .scratch = d.blocks.scratch},
                        queue);
    if constexpr (!std::is_same_v<T, A>) {
      cast<T, A, T>({.from = layer_values(rows(c.dkv), n, l), .to = layer_values(rows(c.dkv_project), n, l)},
                    queue);
    }
  }
  matmul<T, A>({Product::tn, rows(c.dkv_project), rows(c.c), d.g.kv_all, true}, queue);
  if (on_ready) on_ready(d.g.norm - d.grads);
  matmul<T, T>({Product::nn, rows(c.dkv_project), d.w.kv_all, rows(c.dc)}, queue);
  rmsnorm_bwd<T>({.x = rows(c.fc),
                  .gain = d.w.hidden_norm,
                  .inv_rms = c.inv_rms,
                  .dy = rows(c.dc),
                  .dx = rows(c.dc),
                  .dgain = d.g.hidden_norm,
                  .scratch = d.blocks.scratch},
                 queue);
  // The last product of the pass, and nothing hides the sum of its last piece: so in pieces.
  const int64_t h = d.model.hidden, most = fc_rows(h);
  for (int64_t end = h; end > 0;) {
    const int64_t first = (end - 1) / most * most;
    const View2<A> piece = d.g.fc.rows_from(first, end - first);
    matmul<T, A>({Product::tn, rows(c.dc).cols_from(first, end - first), rows(c.x), piece, true}, queue);
    if (on_ready) on_ready(piece.data - d.grads);
    end = first;
  }
}

std::vector<int64_t> gradient_parts(const DrafterModel& m, const ParameterLayout& layout) {
  const auto at = [&](int64_t l, const char* name) {
    return layout.at("layers." + std::to_string(l) + "." + name).offset;
  };
  std::vector<int64_t> begins;
  for (int64_t l = m.layers; l-- > 0;) begins.push_back(at(l, "self_attn.o_proj.weight"));
  begins.push_back(at(0, "input_layernorm.weight"));
  begins.push_back(layout.at("norm.weight").offset);
  const int64_t width = static_cast<int64_t>(m.taps.size()) * m.hidden, rows = fc_rows(m.hidden);
  for (int64_t first = (m.hidden - 1) / rows * rows; first >= 0; first -= rows)
    begins.push_back(first * width);
  return begins;
}

#define SLIP_INSTANTIATE(T)                                                                          \
  template Drafter<T> make_drafter(const DrafterModel&, const DrafterLimits&, Arena&, const Queue&); \
  template void set_weights(Drafter<T>&, const std::vector<float>&, const Queue&);                   \
  template void context_extend(Drafter<T>&, int64_t, int64_t, const int*, const Queue&);             \
  template void context_forward(Drafter<T>&, int64_t, const int*, const Queue&);                     \
  template void blocks_forward(Drafter<T>&, const Blocks&, int64_t, View2<const T>, const Queue&);   \
  template void blocks_backward(Drafter<T>&, const Blocks&, int64_t, const Queue&, const OnReady&);  \
  template void context_backward(Drafter<T>&, int64_t, const int*, const Queue&, const OnReady&);
SLIP_INSTANTIATE(float)
SLIP_INSTANTIATE(double)
#if SLIP_HAVE_CUDA
SLIP_INSTANTIATE(Bf16)
#endif

}  // namespace slip
