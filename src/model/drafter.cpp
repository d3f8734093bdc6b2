#include "model/drafter.hpp"

#include "kernels/embedding.hpp"
#include "kernels/few_rows.hpp"
#include "kernels/rmsnorm.hpp"
#include "kernels/swiglu.hpp"
#include "model/drafter_products.hpp"
#include "model/drafter_widths.hpp"

namespace slip {

template <class T>
void context_extend(Drafter<T>& d, int64_t first, int64_t count, const int* position, const Queue& queue) {
  require(first + count <= d.limits.context, "context_extend: more tokens than the drafter was made for");
  if (count == 0) return;
  const DrafterWidths n = widths(d.model);
  const auto rows = [&](const auto& v) { return v.rows_from(0, count); };
  ContextBuffers<T>& c = d.context;
  const View2<T> kv = c.kv.rows_from(first, count), keys = c.k.rows_from(first, count);
  const Products<T> products(d, queue);
  products.input(rows(c.x), {});
  products.forward(rows(c.x), d.w.fc, d.fp8.fc, rows(c.fc));
  rmsnorm_fwd<T>(
      {.x = rows(c.fc), .gain = d.w.hidden_norm, .eps = d.model.eps, .y = rows(c.c), .inv_rms = c.inv_rms},
      queue);
  products.input(rows(c.c), {});
  products.forward(rows(c.c), d.w.kv_all, d.fp8.kv_all.rows, kv);
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
  const DrafterWidths n = widths(d.model);
  const float eps = d.model.eps;
  const auto rows = [&](const View2<T>& v) { return v.rows_from(0, in.count * d.model.block); };
  const auto context = [&](const View2<T>& v) { return v.rows_from(0, tokens); };
  const bool frozen = d.grads == nullptr;
  const Products<T> products(d, queue);
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
    const Fp8Layer& f = products.layer(l);
    products.input(rows(s.u), f.u);
    products.forward(rows(s.u), w.q, f.q.rows, rows(s.q_project));
    products.forward(rows(s.u), w.kv, f.kv.rows, rows(s.kv));
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
    products.input(rows(s.attention), f.attention);
    products.forward(rows(s.attention), w.o, f.o.rows, rows(b.delta));
    rmsnorm_fwd<T>({.x = z,
                    .add = rows(b.delta),
                    .sum = rows(s.z_mid),
                    .gain = w.post_norm,
                    .eps = eps,
                    .y = rows(s.y),
                    .inv_rms = s.mid_inv_rms},
                   queue);
    if (!frozen || !few_rows_swiglu<T>({rows(s.y), w.gate_up, rows(b.act), true}, queue)) {
      products.input(rows(s.y), f.y);
      products.forward(rows(s.y), w.gate_up, f.gate_up.rows, rows(s.gate_up));  // for the backward pass, too
      swiglu_fwd<T>({.gate_up = rows(s.gate_up), .act = rows(b.act)}, queue);
    }
    products.input(rows(b.act), f.act);
    products.forward(rows(b.act), w.down, f.down.rows, rows(b.delta));
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

#define SLIP_INSTANTIATE(T)                                                              \
  template void context_extend(Drafter<T>&, int64_t, int64_t, const int*, const Queue&); \
  template void context_forward(Drafter<T>&, int64_t, const int*, const Queue&);         \
  template void blocks_forward(Drafter<T>&, const Blocks&, int64_t, View2<const T>, const Queue&);
SLIP_INSTANTIATE(float)
SLIP_INSTANTIATE(double)
#if SLIP_HAVE_CUDA
SLIP_INSTANTIATE(Bf16)
#endif

}  // namespace slip
