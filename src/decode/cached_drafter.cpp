#include "decode/cached_drafter.hpp"

#include <algorithm>

#include "kernels/cache_attention.hpp"
#include "kernels/features.hpp"
#include "kernels/matmul.hpp"
#include "kernels/sample.hpp"

namespace slip {

template <class T>
CachedDrafter<T> make_cached_drafter(DrafterModel m, int64_t block, const CacheLimits& limits, Arena& arena,
                                     const Queue& queue) {
  require(block >= 1 && block <= m.block, "make_cached_drafter: the block is longer than the trained one");
  m.block = block;
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim, h = m.hidden;
  CachedDrafter<T> c{.drafter = {.model = m,
                                 .limits = {limits.positions, 1, limits.positions},
                                 .layout = parameter_layout(m)}};
  Drafter<T>& d = c.drafter;
  d.weights = arena.take<T>("drafter.weights", d.layout.count);
  d.w = drafter_views<T>(m, d.layout, d.weights);
  d.rope = make_rope_table("drafter.rope", m.rope, m.head_dim, limits.positions, arena, queue);
  d.context.x = arena.take2<T>("drafter.context.x", limits.tokens, static_cast<int64_t>(m.taps.size()) * h);
  d.context.fc = arena.take2<T>("drafter.context.fc", limits.tokens, h);
  d.context.c = arena.take2<T>("drafter.context.c", limits.tokens, h);
  d.context.kv = arena.take2<T>("cache.drafter.kv", limits.positions, m.layers * 2 * kv, "--max-new");
  d.context.k = arena.take2<T>("cache.drafter.k", limits.positions, m.layers * kv, "--max-new");
  const auto matrix = [&](const char* name, int64_t cols) {
    return arena.take2<T>(std::string("drafter.") + name, block, cols);
  };
  LayerBuffers<T> layer{};  // one for all layers: there is no backward pass
  layer.z = matrix("z", h);
  layer.u = matrix("u", h);
  layer.q_project = matrix("q_project", q);
  layer.kv = matrix("kv", 2 * kv);
  layer.q = matrix("q", q);
  layer.k = matrix("k", kv);
  layer.attention = matrix("attention", q);
  layer.z_mid = matrix("z_mid", h);
  layer.y = matrix("y", h);
  layer.gate_up = matrix("gate_up", 2 * m.intermediate);
  layer.lse = arena.take<Acc<T>>("drafter.lse", block * m.heads);
  d.blocks.layers.assign(static_cast<size_t>(m.layers), layer);
  d.blocks.z_out = matrix("z_out", h);
  d.blocks.hidden = matrix("hidden", h);
  d.blocks.delta = matrix("delta", h);
  d.blocks.act = matrix("act", m.intermediate);
  const AttentionShape shape{.heads = static_cast<int>(m.heads),
                             .kv_heads = static_cast<int>(m.kv_heads),
                             .head_dim = static_cast<int>(m.head_dim),
                             .scale = attention_scale(static_cast<int>(m.head_dim))};
  d.blocks.scratch = arena.take<Acc<T>>("drafter.scratch", cache_attention_scratch(shape, queue.device));
  c.logits = arena.take2<Acc<T>>("drafter.logits", block, m.vocab);
  c.ids = arena.take<int>("drafter.ids", block + 2);  // one copy to the device, one back
  c.token = arena.take<int>("drafter.token", block);
  c.margin = arena.take<float>("drafter.margin", block);
  if (arena.measuring()) return c;
  c.place = c.ids + block;
  c.non_finite = c.token + block - 1;
  return c;
}

template <class T>
void extend_context(CachedDrafter<T>& c, const CachedTarget<T>& target, int64_t count, const Queue& queue) {
  Drafter<T>& d = c.drafter;
  join_taps<T>({.slot = target.features,
                .slot_tokens = target.limits.tokens,
                .taps = static_cast<int>(d.model.taps.size()),
                .x = d.context.x.rows_from(0, count),
                .non_finite = c.non_finite},
               queue);
  context_extend(d, c.length, count, target.position + c.length, queue);
  c.length += count;
}

template <class T>
void propose(CachedDrafter<T>& c, const CachedTarget<T>& target, std::span<int32_t> block,
             const Queue& queue) {
  Drafter<T>& d = c.drafter;
  const int64_t rows = static_cast<int64_t>(block.size());
  require(rows == d.model.block, "propose: another block than the drafter was made for");
  require(c.length + rows <= d.limits.positions, "propose: the block does not fit the positions");
  if (rows == 1) return;
  std::fill(block.begin() + 1, block.end(), static_cast<int32_t>(d.model.mask_token));
  const int64_t word = sizeof(int);
  std::vector<int> sent(block.begin(), block.end()), got(block.size());
  sent.push_back(static_cast<int>(c.length));  // place: the anchor, and the first token
  sent.push_back(0);
  copy_to_device(c.ids, sent.data(), (rows + 2) * word, queue);
  const Blocks blocks{
      .count = 1, .ids = c.ids, .position = target.position + c.length, .anchor = c.place, .lo = c.place + 1};
  blocks_forward<T>(d, blocks, c.length, target.target.weights.embed, queue);
  const View2<Acc<T>> logits = c.logits.rows_from(1, rows - 1);
  matmul<T, Acc<T>>({.form = Product::nt,
                     .a = d.blocks.hidden.rows_from(1, rows - 1),
                     .b = target.target.weights.head,
                     .c = logits,
                     .b_settled = true},
                    queue);
  sample_rows<T>({.logits = logits, .temperature = 0, .token = c.token, .margin = c.margin}, queue);
  copy_to_host(got.data(), c.token, rows * word, queue);
  synchronize(queue);
  if (got.back() != 0) fail("the target's hidden states are not finite");
  std::copy(got.begin(), got.end() - 1, block.begin() + 1);
}

#define SLIP_INSTANTIATE(T)                                                                        \
  template CachedDrafter<T> make_cached_drafter(DrafterModel, int64_t, const CacheLimits&, Arena&, \
                                                const Queue&);                                     \
  template void extend_context(CachedDrafter<T>&, const CachedTarget<T>&, int64_t, const Queue&);  \
  template void propose(CachedDrafter<T>&, const CachedTarget<T>&, std::span<int32_t>, const Queue&);
SLIP_INSTANTIATE(float)
#if SLIP_HAVE_CUDA
SLIP_INSTANTIATE(Bf16)
#endif

}  // namespace slip
