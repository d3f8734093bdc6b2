// `bench target`: the capture of packed rows, as a target rank runs it, on synthetic weights.
#include <fmt/format.h>

#include <algorithm>

#include "apps/bench_shapes.hpp"
#include "kernels/features.hpp"
#include "launch/plan.hpp"
#include "model/synthetic.hpp"

namespace slip {
namespace {

// FLOPs and bytes of all calls of an operation in a capture, by the name that target_layers probes with.
struct Cost {
  double flops = 0, bytes = 0;
};
Cost cost_of(const std::string& op, const TargetModel& m, const std::vector<StepProduct>& products,
             const RowShape& row, int64_t layers, int64_t taps, double element) {
  Cost c;
  for (const StepProduct& p : products) {
    if (p.name == op || p.name.starts_with(op + " of ")) c.flops += p.flops() * static_cast<double>(p.times);
  }
  if (c.flops > 0) return c;
  int64_t linear = 0;
  for (int64_t l = 0; l < layers; ++l) linear += m.is_linear(l);
  const double delta_nets = static_cast<double>(linear), attentions = static_cast<double>(layers - linear),
               tokens = static_cast<double>(row.tokens), h = static_cast<double>(m.hidden),
               q = static_cast<double>(m.heads * m.head_dim),
               kv = static_cast<double>(m.kv_heads * m.head_dim),
               length = tokens / static_cast<double>(row.documents);
  const auto moves = [&](double columns, double calls) { c.bytes = tokens * columns * calls * element; };
  if (op == "embedding") moves(2 * h, 1);
  if (op == "norm")  // in and out of x and y, what is added; a tap is written once more
    moves(h, 4 * (2 * static_cast<double>(layers) - 1) + 2 + 3),
        c.bytes += tokens * h * 2 * static_cast<double>(taps);
  if (op == "head_rope") moves(2 * (q + kv), attentions);
  if (op == "attention") c.flops = 4 * q * tokens * (length + 1) / 2 * attentions;
  if (op == "output_gate") moves(3 * q, attentions);
  if (op == "delta_conv") moves(2 * static_cast<double>(m.delta.channels()), delta_nets);
  if (op == "gated_delta") c.flops = gated_delta_flops(m.delta) * tokens * delta_nets;
  if (op == "gated_norm") moves(3 * static_cast<double>(m.delta.values()), delta_nets);
  if (op == "swiglu") moves(3 * static_cast<double>(m.intermediate), static_cast<double>(layers));
  return c;
}

}  // namespace

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
  std::vector<PartTiming> parts;  // with --profile
  {
    Arena arena(b.queue.device);
    Target<T> target{m, synthetic_target<T>(m, {layers, false}, 1, arena, b.queue),
                     make_target_buffers<T>(m, tokens, arena, b.queue)};
    if (b.options.cudnn) target.cudnn = make_cudnn_attention(m, tokens, arena);
    PackedRow packed_row("row", tokens, arena);
    Bf16* slot = arena.take<Bf16>("features", static_cast<int64_t>(taps.size()) * tokens * h);
    const Packed packed = packed_row.set(row.ids, row.lengths, b.queue);
    const auto capture = [&] {
      target_forward<T>(
          target, packed, taps, b.queue, [](int, View2<const T>) {},
          [&](int i) { return slot + i * tokens * h; });
    };
    out.time = measure(b.queue, repeats, capture);
    if (b.options.profile) {
      parts = measure_parts(b.queue, repeats, [&](const Mark& mark) {
        target.probe = mark;
        capture();
      });
    }
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
  double sum = 0;
  for (const PartTiming& p : parts) sum += p.time.median_ms;
  for (const PartTiming& p : parts) {
    const Cost c = cost_of(p.name, m, products, {.tokens = tokens, .documents = documents}, layers,
                           static_cast<int64_t>(taps.size()), sizeof(T));
    report(b,
           {"profile",
            shape,
            p.name,
            "all of a capture",
            out.dims,
            p.time,
            c.flops,
            c.bytes,
            {{"calls", static_cast<double>(p.calls)}, {"percent_of_capture", 100 * p.time.median_ms / sum}}});
    fmt::print(stderr, "{:<10} {:<20} {:.2f} % of the capture\n", "", p.name, 100 * p.time.median_ms / sum);
  }
}

template void bench_target<float>(Bench&, const std::string&);
#if SLIP_HAVE_CUDA
template void bench_target<Bf16>(Bench&, const std::string&);
#endif

}  // namespace slip
