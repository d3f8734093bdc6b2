// `bench decode`: one call of the target and one of the drafter as `decode` makes them, on synthetic weights
// and a full cache. Both read every weight once for a handful of tokens, so the limit is memory.
#include <fmt/format.h>

#include <algorithm>

#include "apps/bench_shapes.hpp"
#include "decode/cached_drafter.hpp"
#include "model/synthetic.hpp"

namespace slip {
namespace {

double target_bytes(const TargetModel& m, int64_t cached, double element) {
  double values = static_cast<double>(m.vocab * m.hidden);  // the head
  for (const StepProduct& p : target_products(m, m.layers, 1))
    values += static_cast<double>(p.n * p.k * p.times);
  const int64_t linear = std::count(m.linear.begin(), m.linear.end(), true);
  const int64_t states =
      m.linear.empty() ? 0 : linear * delta_state_size(target_delta(m)) * int64_t{sizeof(float)};
  return element *
             (values + static_cast<double>((m.layers - linear) * cached * 2 * m.kv_heads * m.head_dim)) +
         static_cast<double>(states);
}

// Without fc, which reads the context of accepted tokens, not of the block.
double drafter_bytes(const DrafterModel& m, const ParameterLayout& layout, int64_t cached, double element) {
  const int64_t weights = layout.count - layout.at("fc.weight").count + m.vocab * m.hidden;
  return element * static_cast<double>(weights + m.layers * cached * 2 * m.kv_heads * m.head_dim);
}

}  // namespace

template <class T> void bench_decode(Bench& b, const std::string& shape) {
  const TargetModel m = bench_target_model(shape);
  const DrafterModel drafter_model = make_step_shape(b.options, shape).model;
  const int64_t block = drafter_model.block, piece = 256;
  const int64_t cached = b.options.tokens > 0 ? b.options.tokens : shape == "tiny" ? 200 : 1024;
  const CacheLimits limits{cached + block, std::max(piece, block), block};
  Arena arena(b.queue.device);
  CachedTarget<T> target =
      make_cached_target<T>(m, synthetic_target<T>(m, {m.layers, true, true}, 1, arena, b.queue),
                            drafter_model.taps, limits, arena, b.queue);
  CachedDrafter<T> drafter = make_cached_drafter<T>(drafter_model, block, limits, arena, b.queue);
  synthetic_weights(drafter.drafter, 2, b.queue);
  const RowTokens row = random_row({cached + block, 1, 0}, m.vocab);
  const std::span<const int32_t> ids(row.ids);
  for (int64_t at = 0; at < cached;) {
    const int64_t n = std::min(piece, cached - at);
    target_pass<T>(target, ids.subspan(static_cast<size_t>(at), static_cast<size_t>(n)), {}, {}, b.queue);
    accept_tokens(target, n, b.queue);
    extend_context(drafter, target, n, b.queue);
    at += n;
  }
  const Repeats repeats = b.repeats(20, false);
  const auto call = [&](const char* name, int64_t tokens, double bytes, const std::function<void()>& work) {
    report(b, {.bench = "decode",
               .model = shape,
               .op = name,
               .name = fmt::format("{} token{}", tokens, tokens > 1 ? "s" : ""),
               .dims = {{"cached", cached}, {"tokens", tokens}},
               .time = measure(b.queue, repeats, work),
               .bytes = bytes});
  };
  const double element = sizeof(T);
  for (const int64_t n : {int64_t{1}, block}) {
    std::vector<Choice> choices(static_cast<size_t>(n));
    const auto verified = ids.subspan(static_cast<size_t>(cached), static_cast<size_t>(n));
    call("target call", n, target_bytes(m, cached, element),
         [&] { target_pass<T>(target, verified, {}, choices, b.queue); });
  }
  std::vector<int32_t> drafts(static_cast<size_t>(block), 1);
  call("drafter call", block, drafter_bytes(drafter_model, drafter.drafter.layout, cached, element),
       [&] { propose<T>(drafter, target, drafts, b.queue); });
}

template void bench_decode<float>(Bench&, const std::string&);
#if SLIP_HAVE_CUDA
template void bench_decode<Bf16>(Bench&, const std::string&);
#endif

}  // namespace slip
