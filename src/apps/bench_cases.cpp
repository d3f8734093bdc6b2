#include "apps/bench_cases.hpp"

#include <algorithm>

#include "core/random.hpp"
#include "kernels/adamw.hpp"
#include "kernels/fill.hpp"
#include "kernels/head_loss.hpp"
#include "model/synthetic.hpp"
#include "train/step.hpp"

namespace slip {

template <class T> View2<T> filled(Arena& a, const char* name, int64_t rows, int64_t cols, const Queue& q) {
  return synthetic_matrix<T>(name, rows, cols, 1, 1, a, q);
}

template <class V> V* uploaded(Arena& a, const char* name, const std::vector<V>& values, const Queue& q) {
  V* to = a.take<V>(name, static_cast<int64_t>(values.size()));
  copy_to_device(to, values.data(), static_cast<int64_t>(values.size() * sizeof(V)), q);
  synchronize(q);
  return to;
}
template int* uploaded(Arena&, const char*, const std::vector<int>&, const Queue&);
template uint8_t* uploaded(Arena&, const char*, const std::vector<uint8_t>&, const Queue&);

template <class T> BenchCases matmul_cases(const StepShape& s, const Queue& q) {
  Arena measuring(q.device, Arena::Mode::measure);
  BenchCases out;
  for (const StepProduct& p :
       step_products(s, make_pass_buffers<T>(s.model, s.limits, measuring).chunk_rows)) {
    const int64_t size_c = p.m * p.n * static_cast<int64_t>(p.weight_gradient ? sizeof(Acc<T>) : sizeof(T));
    const double bytes = static_cast<double>((p.m + p.n) * p.k * static_cast<int64_t>(sizeof(T)) +
                                             size_c * (p.accumulate ? 2 : 1));
    StepProduct once = p;
    once.times = 1;
    out.push_back({"matmul",
                   p.name,
                   {{"m", p.m}, {"n", p.n}, {"k", p.k}},
                   p.flops(),
                   bytes,
                   p.head ? 0.0 : static_cast<double>(p.times),
                   [once, q](Arena& a) { return products_alone<T>({once}, a, q); }});
  }
  return out;
}

template <class T> BenchCases head_loss_cases(const StepShape& s, const Queue& q) {
  BenchCases out;
  for (const Pass& pass : s.passes) {
    const auto first = s.blocks.valid.begin() + pass.first * s.model.block;
    const std::vector<uint8_t> valid(first, first + pass.rows);
    const int64_t rows = std::count(valid.begin(), valid.end(), uint8_t{1}), h = s.model.hidden,
                  v = s.model.vocab;
    // Two products; hidden in, its gradient out, and the head read by both.
    const double flops = 4.0 * static_cast<double>(rows * h) * static_cast<double>(v);
    const double bytes = static_cast<double>((2 * pass.rows + 2 * v) * h) * sizeof(T);
    out.push_back({"head_loss",
                   "forward and gradient",
                   {{"rows", rows}, {"h", h}, {"v", v}},
                   flops,
                   bytes,
                   static_cast<double>(s.rows),
                   [=](Arena& a) -> Work {
                     PassBuffers<T> p = make_pass_buffers<T>(s.model, s.limits, a);
                     std::vector<int> valid_rows, begin(1, 0);
                     for (int64_t r = 0; r < pass.rows; ++r) {
                       if (valid[static_cast<size_t>(r)]) valid_rows.push_back(static_cast<int>(r));
                       if ((r + 1) % s.model.block == 0) begin.push_back(static_cast<int>(valid_rows.size()));
                     }
                     const std::vector<int> labels(static_cast<size_t>(pass.rows), 1);
                     const View2<T> head = synthetic_matrix<T>("head", v, h, 0.02f, 1, a, q);
                     quantize_head<T>(p, head, q);
                     HeadLoss<T> x{.hidden = filled<T>(a, "hidden", pass.rows, h, q),
                                   .head = head,
                                   .block = static_cast<int>(s.model.block),
                                   .rule = {},
                                   .labels = uploaded(a, "labels", labels, q),
                                   .valid = uploaded(a, "valid", valid, q),
                                   .rows = uploaded(a, "rows", valid_rows, q),
                                   .dhidden = a.take2<T>("dhidden", pass.rows, h),
                                   .nll = p.nll,
                                   .weight = p.weight,
                                   .correct = p.correct,
                                   .chunk_rows = p.chunk_rows,
                                   .chunk_hidden = p.chunk_hidden,
                                   .chunk_dhidden = p.chunk_dhidden,
                                   .chunk_logits = p.chunk_logits,
                                   .fp8 = p.fp8};
                     return [x, begin, q]() mutable {
                       x.block_begin_host = begin.data();
                       head_loss(x, q);
                     };
                   }});
  }
  return out;
}

template <class T> BenchCases zero_cases(const StepShape& s, const Queue& q) {
  const int64_t n = parameter_layout(s.model).count, bytes = n * static_cast<int64_t>(sizeof(Acc<T>));
  return {{"zero", "gradients", {{"count", n}}, 0, static_cast<double>(bytes), 1, [=](Arena& a) -> Work {
             Acc<T>* grads = a.take<Acc<T>>("grads", n);
             return [=] { zero(grads, bytes, q); };
           }}};
}

template <class T> BenchCases sum_squares_cases(const StepShape& s, const Queue& q) {
  const int64_t n = parameter_layout(s.model).count;
  return {{"sum_squares",
           "gradients",
           {{"count", n}},
           0,
           static_cast<double>(n) * sizeof(Acc<T>),
           1,
           [=](Arena& a) -> Work {
             const SumSquares<T> x{n, filled<Acc<T>>(a, "grads", 1, n, q).data, a.take<double>("sum", 1),
                                   a.take<double>("scratch", sum_squares_scratch(q.device))};
             return [=] { sum_squares(x, q); };
           }}};
}

template <class T> BenchCases adamw_cases(const StepShape& s, const Queue& q) {
  const int64_t n = parameter_layout(s.model).count;
  // Gradient read; master and both moments read and written; weight written.
  const double bytes = static_cast<double>(n) * (7 * sizeof(Acc<T>) + sizeof(T));
  return {{"adamw", "all parameters", {{"count", n}}, 0, bytes, 1, [=](Arena& a) -> Work {
             const AdamW<T> x{.count = n,
                              .master = filled<Acc<T>>(a, "master", 1, n, q).data,
                              .m = a.take<Acc<T>>("m", n),
                              .v = a.take<Acc<T>>("v", n),
                              .grad = filled<Acc<T>>(a, "grad", 1, n, q).data,
                              .weight = a.take<T>("weight", n),
                              .round_weight = false,
                              .lr = 1e-4f,
                              .beta1 = 0.9f,
                              .beta2 = 0.95f,
                              .eps = 1e-8f,
                              .weight_decay = 0.01f,
                              .grad_scale = 1,
                              .step = 1};
             return [=] { adamw(x, q); };
           }}};
}

template <class T> const std::vector<Op<T>>& all_ops() {
  static const std::vector<Op<T>> ops = {{"matmul", matmul_cases<T>},
                                         {"quantize_fp8", quantize_fp8_cases<T>},
                                         {"block_attention", block_attention_cases<T>},
                                         {"causal_attention", causal_attention_cases<T>},
                                         {"rmsnorm", rmsnorm_cases<T>},
                                         {"head_rope", head_rope_cases<T>},
                                         {"swiglu", swiglu_cases<T>},
                                         {"features", feature_cases<T>},
                                         {"gather_rows", gather_rows_cases<T>},
                                         {"head_loss", head_loss_cases<T>},
                                         {"zero", zero_cases<T>},
                                         {"sum_squares", sum_squares_cases<T>},
                                         {"adamw", adamw_cases<T>}};
  return ops;
}

#define SLIP_INSTANTIATE(T)                                                      \
  template View2<T> filled(Arena&, const char*, int64_t, int64_t, const Queue&); \
  template const std::vector<Op<T>>& all_ops();
SLIP_INSTANTIATE(float)
#if SLIP_HAVE_CUDA
SLIP_INSTANTIATE(Bf16)
#endif

}  // namespace slip
