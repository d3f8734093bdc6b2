// `bench target`: the capture of packed rows, as a target rank runs it, on synthetic weights.
#include <fmt/format.h>

#include <algorithm>

#include "apps/bench_shapes.hpp"
#include "kernels/features.hpp"
#include "launch/plan.hpp"
#include "model/synthetic.hpp"

namespace slip {

template <class T> void bench_target(Bench& b, const std::string& shape) {
  const TargetModel m = bench_target_model(shape);
  const std::vector<int64_t> taps = bench_target_taps(shape, m);
  const int64_t layers = *std::max_element(taps.begin(), taps.end()) + 1, h = m.hidden;
  const int64_t tokens = b.options.tokens > 0 ? b.options.tokens : shape == "tiny" ? 288 : 4096;
  const int64_t documents = std::max<int64_t>(1, b.options.documents);
  if (documents > tokens) fail_usage("--documents: more documents than tokens");
  const Repeats repeats = b.repeats(10, false);
  const RowTokens row = random_row({tokens, documents, 0}, m.vocab);
  BenchRow out{.bench = "target",
               .model = shape,
               .op = "capture",
               .name = b.options.cudnn ? "forward to the last tap, cuDNN" : "forward to the last tap",
               .dims = {{"tokens", tokens},
                        {"documents", documents},
                        {"layers", layers},
                        {"taps", static_cast<int64_t>(taps.size())}}};
  {
    Arena arena(b.queue.device);
    Target<T> target{m, synthetic_target<T>(m, {layers, false}, 1, arena, b.queue),
                     make_target_buffers<T>(m, tokens, arena, b.queue)};
    if (b.options.cudnn) target.cudnn = make_cudnn_attention(m, tokens, arena);
    PackedRow packed_row("row", tokens, arena);
    Bf16* slot = arena.take<Bf16>("features", static_cast<int64_t>(taps.size()) * tokens * h);
    const Packed packed = packed_row.set(row.ids, row.lengths, b.queue);
    out.time = measure(b.queue, repeats, [&] {
      target_forward<T>(
          target, packed, taps, b.queue, [](int, View2<const T>) {},
          [&](int i) { return slot + i * tokens * h; });
    });
    out.more = {{"tokens_per_s", static_cast<double>(tokens) / out.time.median_ms * 1e3},
                {"arena_bytes", static_cast<double>(arena.total_bytes())}};
    if (!b.queue.on_cpu())
      out.more.emplace_back("device_bytes_in_use", static_cast<double>(device_bytes_in_use()));
  }
  const std::vector<StepProduct> products = target_products(m, layers, tokens);
  Arena arena(b.queue.device);
  const double products_ms = measure(b.queue, repeats, products_alone<T>(products, arena, b.queue)).median_ms;
  out.flops = target_row_flops(m, layers - 1, {.tokens = tokens, .documents = documents});
  out.more.emplace_back("products_flops", total_flops(products));
  out.more.emplace_back("products_ms", products_ms);
  out.more.emplace_back("rest_over_products", (out.time.median_ms - products_ms) / products_ms);
  report(b, out);
  for (const auto& [key, value] : out.more) fmt::print(stderr, "{:<10} {:<20} {:.6g}\n", "", key, value);
}

template void bench_target<float>(Bench&, const std::string&);
#if SLIP_HAVE_CUDA
template void bench_target<Bf16>(Bench&, const std::string&);
#endif

}  // namespace slip
