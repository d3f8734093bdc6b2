#include "kernels/blas.hpp"
#include "kernels/features.hpp"
#include "kernels/rmsnorm.hpp"
#include "kernels/swiglu.hpp"
#include "model/drafter_products.hpp"
#include "model/drafter_widths.hpp"

namespace slip {
namespace {

// Rows of fc whose gradients are one product.
constexpr int64_t kFcPieces = 4;
int64_t fc_rows(int64_t hidden) { return (hidden + 8 * kFcPieces - 1) / (8 * kFcPieces) * 8; }

}  // namespace

template <class T>
void blocks_backward(Drafter<T>& d, const Blocks& in, int64_t tokens, const Queue& queue,
                     const OnReady& on_ready) {
  const DrafterWidths n = widths(d.model);
  const Products<T> products(d, queue);
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
    const Fp8Layer& f = products.layer(l);
    // MLP: dz is the gradient of z_mid + act Wd^T. Gradients take the activations' places.
    products.gradient(dz);
    products.input_gradient(dz, w.down, f.down.columns, act);
    const View2<T> dgate_up = rows(s.gate_up);
    // In fp8 the forward pass has kept act, transposed.
    swiglu_bwd<T>(
        {.gate_up = dgate_up, .dact = act, .dgate_up = dgate_up, .act = products.fp8() ? View2<T>() : act},
        queue);
    products.weight_gradient(dz, act, f.act, g.down);
    products.gradient(dgate_up);
    products.input_gradient(dgate_up, w.gate_up, f.gate_up.columns, dy);
    products.weight_gradient(dgate_up, rows(s.y), f.y, g.gate_up);
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
    products.gradient(dz);
    products.input_gradient(dz, w.o, f.o.columns, rows(b.dattention));
    products.weight_gradient(dz, rows(s.attention), f.attention, g.o);
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
                            .leave_multiprocessors = left_multiprocessors(queue),
                            .one_document = in.one_document},
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
    products.gradient(rows(b.dq));
    products.input_gradient(rows(b.dq), w.q, f.q.columns, dy);
    products.weight_gradient(rows(b.dq), rows(s.u), f.u, g.q);
    products.gradient(dkv);
    products.input_gradient(dkv, w.kv, f.kv.columns, dy, true);
    products.weight_gradient(dkv, rows(s.u), f.u, g.kv);
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
  const DrafterWidths n = widths(d.model);
  const auto rows = [&](const auto& v) { return v.rows_from(0, tokens); };
  ContextBuffers<T>& c = d.context;
  // No pass over blocks follows: of all layers' keys and values the gradients take the projections' places.
  const View2<T> dkv = rows(c.kv);
  for (size_t l = 0; l < d.w.layers.size(); ++l) {
    head_rope_bwd<T, A>({.x = layer_keys(rows(c.kv), n, l),
                         .heads = n.kv_heads,
                         .head_dim = n.d,
                         .gain = d.w.layers[l].k_norm,
                         .inv_rms = c.k_inv_rms + static_cast<int64_t>(l) * d.limits.context * n.kv_heads,
                         .table = d.rope,
                         .position = position,
                         .dy = layer_keys(rows(c.dkv), n, l),
                         .dx = layer_keys(dkv, n, l),
                         .dgain = d.g.layers[l].k_norm,
                         .scratch = d.blocks.scratch},
                        queue);
    cast<T, A, T>({.from = layer_values(rows(c.dkv), n, l), .to = layer_values(dkv, n, l)}, queue);
  }
  const Products<T> products(d, queue);
  products.gradient(dkv);
  products.weight_gradient(dkv, rows(c.c), products.turned(rows(c.c)), d.g.kv_all);
  if (on_ready) on_ready(d.g.norm - d.grads);
  const View2<T> dc = rows(c.c);  // the product above was the last that reads c
  products.input_gradient(dkv, d.w.kv_all, d.fp8.kv_all.columns, dc);
  rmsnorm_bwd<T>({.x = rows(c.fc),
                  .gain = d.w.hidden_norm,
                  .inv_rms = c.inv_rms,
                  .dy = dc,
                  .dx = dc,
                  .dgain = d.g.hidden_norm,
                  .scratch = d.blocks.scratch},
                 queue);
  products.gradient_of_weights(dc);
  const Fp8Rows x = products.turned(rows(c.x));
  // The last product of the pass, and nothing hides the sum of its last piece: so in pieces.
  const int64_t h = d.model.hidden, most = fc_rows(h);
  for (int64_t end = h; end > 0;) {
    const int64_t first = (end - 1) / most * most;
    const View2<A> piece = d.g.fc.rows_from(first, end - first);
    products.weight_gradient(dc, rows(c.x), x, piece, first);
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

#define SLIP_INSTANTIATE(T)                                                                         \
  template void blocks_backward(Drafter<T>&, const Blocks&, int64_t, const Queue&, const OnReady&); \
  template void context_backward(Drafter<T>&, int64_t, const int*, const Queue&, const OnReady&);
SLIP_INSTANTIATE(float)
SLIP_INSTANTIATE(double)
#if SLIP_HAVE_CUDA
SLIP_INSTANTIATE(Bf16)
#endif

}  // namespace slip
