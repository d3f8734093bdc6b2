// Quantizing what the products of a step read: inputs, gradients and weights.
#include "apps/bench_cases.hpp"
#include "kernels/fp8.hpp"

namespace slip {
namespace {

enum class Copies { both, rows, columns };

template <class T>
BenchCase quantize_case(const char* name, int64_t rows, int64_t cols, Copies copies, double per_step,
                        const Queue& q) {
  const int64_t outputs = copies == Copies::both ? 2 : 1;
  return {"quantize_fp8",
          name,
          {{"rows", rows}, {"cols", cols}, {"copies", outputs}},
          0,
          static_cast<double>(rows * cols * (static_cast<int64_t>(sizeof(T)) + outputs)),  // x once
          per_step,
          [=](Arena& a) -> Work {
            const auto take = [&](const char* to, int64_t r, int64_t k) {
              return Fp8Rows{a.take2<E4m3>(to, r, k), a.take<float>(to, r)};
            };
            QuantizeFp8<T> x{.x = filled<T>(a, "x", rows, cols, q),
                             .largest = a.take<uint32_t>("largest", rows + cols)};
            if (copies != Copies::columns) x.rows = take("rows", rows, cols);
            if (copies != Copies::rows) x.columns = take("columns", cols, fp8_padded(rows));
            return [=] { quantize_fp8(x, q); };
          }};
}

}  // namespace

template <class T> BenchCases quantize_fp8_cases(const StepShape& s, const Queue& q) {
  const DrafterModel& m = s.model;
  const int64_t h = m.hidden, mid = m.intermediate, wide = m.heads * m.head_dim,
                kv = 2 * m.kv_heads * m.head_dim, context = s.context(),
                taps = static_cast<int64_t>(m.taps.size()) * h;
  BenchCases out;
  const auto add = [&](const char* name, int64_t rows, int64_t cols, double times,
                       Copies copies = Copies::both) {
    out.push_back(quantize_case<T>(name, rows, cols, copies, s.limits.fp8 ? times : 0, q));
  };
  const auto step_rows = static_cast<double>(s.rows), layers = static_cast<double>(m.layers);
  add("taps", context, taps, step_rows, Copies::rows);
  add("taps turned", context, taps, step_rows, Copies::columns);
  add("context", context, h, step_rows, Copies::rows);
  add("context turned", context, h, step_rows, Copies::columns);
  add("gradient of context kv", context, m.layers * kv, step_rows);
  add("gradient of context", context, h, step_rows, Copies::columns);
  for (const Pass& pass : s.passes) {
    const double times = layers * step_rows;
    add("norms, gradients of the stream", pass.rows, h, 4 * times);
    add("attention, gradient of q", pass.rows, wide, 2 * times);
    add("act", pass.rows, mid, times);
    add("gradient of gate_up", pass.rows, 2 * mid, times);
    add("gradient of kv", pass.rows, kv, times);
  }
  add("fc weight", h, taps, 1, Copies::rows);
  add("kv_all weight", m.layers * kv, h, 1);
  add("q weight", wide, h, layers);
  add("o weight", h, wide, layers);
  add("gate_up weight", 2 * mid, h, layers);
  add("down weight", h, mid, layers);
  return out;
}

template BenchCases quantize_fp8_cases<float>(const StepShape&, const Queue&);
#if SLIP_HAVE_CUDA
template BenchCases quantize_fp8_cases<Bf16>(const StepShape&, const Queue&);
#endif

}  // namespace slip
