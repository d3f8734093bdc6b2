#include "decode/cached_target.hpp"

#include <bit>
#include <numeric>

#include "kernels/cache_attention.hpp"
#include "kernels/matmul.hpp"
#include "kernels/rmsnorm.hpp"
#include "kernels/sample.hpp"

namespace slip {

template <class T>
CachedTarget<T> make_cached_target(const TargetModel& m, TargetWeights<T> weights,
                                   const std::vector<int64_t>& drafter_taps, const CacheLimits& limits,
                                   Arena& arena, const Queue& queue) {
  require(weights.norm != nullptr && !weights.head.empty() &&
              static_cast<int64_t>(weights.layers.size()) == m.layers,
          "make_cached_target: needs all layers, the norm and the head");
  CachedTarget<T> t{.target = {m,
                               std::move(weights),
                               make_target_buffers<T>(m, limits.tokens, arena, queue, limits.positions),
                               {}},
                    .taps = drafter_taps,
                    .limits = limits};
  t.taps.push_back(m.layers - 1);
  const char* key = "--max-new";
  t.delta = make_delta_cache<T>(m, limits.choices, limits.tokens, arena);
  const View2<T> all = arena.take2<T>("cache.target", (m.layers - t.delta.layers) * limits.positions,
                                      2 * m.kv_heads * m.head_dim, key);
  int64_t attention = 0;
  for (int64_t l = 0; l < m.layers; ++l) {
    t.kv.push_back(m.is_linear(l) ? View2<T>()
                                  : all.rows_from(attention++ * limits.positions, limits.positions));
  }
  t.features = arena.take<Bf16>("cache.features",
                                static_cast<int64_t>(drafter_taps.size()) * limits.tokens * m.hidden);
  t.logits = arena.take2<Acc<T>>("cache.logits", limits.choices, m.vocab);
  t.ids = arena.take<int>("cache.ids", limits.tokens);
  t.position = arena.take<int>("cache.position", limits.positions);
  t.token = arena.take<int>("cache.token", 2 * limits.choices);  // one copy to the host
  t.scratch = arena.take<Acc<T>>("cache.scratch", cache_attention_scratch(target_attention(m), queue.device));
  if (arena.measuring()) return t;
  std::vector<int> position(static_cast<size_t>(limits.positions));
  std::iota(position.begin(), position.end(), 0);
  copy_to_device(t.position, position.data(), limits.positions * static_cast<int64_t>(sizeof(int)), queue);
  synchronize(queue);
  return t;
}

template <class T>
void target_pass(CachedTarget<T>& t, std::span<const int32_t> ids, const Sampling& sampling,
                 std::span<Choice> choices, const Queue& queue) {
  const TargetModel& m = t.target.model;
  const int64_t n = static_cast<int64_t>(ids.size()), last = static_cast<int64_t>(choices.size());
  require(n <= t.limits.tokens && last <= t.limits.choices && last <= n,
          "target_pass: more tokens than were made room for");
  require(t.length + n <= t.limits.positions, "target_pass: the cache is full");
  static_assert(sizeof(int) == sizeof(int32_t));
  copy_to_device(t.ids, ids.data(), n * static_cast<int64_t>(sizeof(int)), queue);
  const Packed in{.tokens = n,
                  .documents = 1,
                  .ids = t.ids,
                  .position = t.position + t.length,
                  .delta = begin_delta_pass(t.delta, n, queue)};
  const int64_t width = m.kv_heads * m.head_dim;
  const Attend<T> attend = [&](int64_t l, View2<const T> q, View2<const T> kv, View2<T> out) {
    const View2<T>& cache = t.kv[static_cast<size_t>(l)];
    const View2<const T> all = cache.rows_from(0, t.length + n);
    cache_attention_fwd<T>({.shape = target_attention(m),
                            .q = q,
                            .k = all.cols_from(0, width),
                            .v = all.cols_from(width, width),
                            .out = out,
                            .scratch = t.scratch,
                            .kv_new = kv,
                            .kv_end = cache.rows_from(t.length, n)},
                           queue);
  };
  const int taps = static_cast<int>(t.taps.size()) - 1;  // the drafter's
  const TapStore capture = [&](int i) {
    return i < taps ? t.features + i * t.limits.tokens * m.hidden : nullptr;
  };
  const OnTap<T> on_tap = [&](int i, View2<const T> stream) {
    if (i < taps || last == 0) return;
    const View2<const T> x = stream.rows_from(n - last, last);
    const View2<T> y = t.target.buffers.y.rows_from(0, last);
    rmsnorm_fwd<T>({.x = x,
                    .gain = t.target.weights.norm,
                    .eps = m.eps,
                    .y = y,
                    .inv_rms = nullptr,
                    .centred = m.centred_norms},
                   queue);
    matmul<T, Acc<T>>({.form = Product::nt,
                       .a = y,
                       .b = t.target.weights.head,
                       .c = t.logits.rows_from(0, last),
                       .b_settled = true},
                      queue);
  };
  const Carry<T> carry = [&](int64_t l) { return delta_carry(t.delta, l, t.length, queue); };
  target_layers<T>(t.target, in, t.taps, queue, attend, on_tap, capture, carry);
  if (last > 0) {
    sample_rows<T>({.logits = t.logits.rows_from(0, last),
                    .temperature = sampling.temperature,
                    .seed = sampling.seed,
                    .sequence = sampling.sequence,
                    .position = t.length + n - last + 1,
                    .token = t.token,
                    .margin = reinterpret_cast<float*>(t.token + last)},
                   queue);
  }
  std::vector<int32_t> said(2 * choices.size());
  copy_to_host(said.data(), t.token, 2 * last * static_cast<int64_t>(sizeof(int)), queue);
  synchronize(queue);
  for (size_t j = 0; j < choices.size(); ++j) {
    const float margin = std::bit_cast<float>(said[choices.size() + j]);
    if (!(margin >= 0)) fail("the target's logits are not finite");
    choices[j] = {said[j], margin};
  }
}

template <class T> void accept_tokens(CachedTarget<T>& t, int64_t count, const Queue& queue) {
  accept_delta(t.delta, t.target, t.length, count, queue);
  t.length += count;
}

template <class T> void restart(CachedTarget<T>& t) {
  t.delta.passed = 0;
  t.length = 0;
}

#define SLIP_INSTANTIATE(T)                                                                                 \
  template CachedTarget<T> make_cached_target(const TargetModel&, TargetWeights<T>,                         \
                                              const std::vector<int64_t>&, const CacheLimits&, Arena&,      \
                                              const Queue&);                                                \
  template void target_pass(CachedTarget<T>&, std::span<const int32_t>, const Sampling&, std::span<Choice>, \
                            const Queue&);                                                                  \
  template void accept_tokens(CachedTarget<T>&, int64_t, const Queue&);                                     \
  template void restart(CachedTarget<T>&);
SLIP_INSTANTIATE(float)
#if SLIP_HAVE_CUDA
SLIP_INSTANTIATE(Bf16)
#endif

}  // namespace slip
