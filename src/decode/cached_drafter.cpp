#include "decode/cached_drafter.hpp"

#include <array>

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
  c.logits = arena.take2<Acc<T>>("drafter.logits", block, m.vocab);
  c.ids = arena.take<int>("drafter.ids", block);
  c.place = arena.take<int>("drafter.place", 2);
  c.token = arena.take<int>("drafter.token", block);
  c.non_finite = arena.take<int>("drafter.non_finite", 1);
  c.margin = arena.take<float>("drafter.margin", block);
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
  const std::array<int, 2> place = {static_cast<int>(c.length), 0};
  const int64_t word = sizeof(int);
  copy_to_device(c.ids, block.data(), rows * word, queue);
  copy_to_device(c.place, place.data(), 2 * word, queue);
  const Blocks blocks{
      .count = 1, .ids = c.ids, .position = target.position + c.length, .anchor = c.place, .lo = c.place + 1};
  blocks_forward<T>(d, blocks, c.length, target.target.weights.embed, queue);
  const View2<Acc<T>> logits = c.logits.rows_from(1, rows - 1);
  matmul<T, Acc<T>>({Product::nt, d.blocks.hidden.rows_from(1, rows - 1), target.target.weights.head, logits},
                    queue);
  sample_rows<T>({.logits = logits, .temperature = 0, .token = c.token, .margin = c.margin}, queue);
  int bad = 0;
  copy_to_host(&bad, c.non_finite, word, queue);
  copy_to_host(block.data() + 1, c.token, (rows - 1) * word, queue);
  synchronize(queue);
  if (bad != 0) fail("the target's hidden states are not finite");
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
