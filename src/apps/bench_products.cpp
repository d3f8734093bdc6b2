// The matrix products of a drafter step and of a target's forward, as lists.
#include <algorithm>

#include "apps/bench_shapes.hpp"
#include "kernels/fill.hpp"
#include "kernels/fp8.hpp"
#include "model/target.hpp"

namespace slip {
namespace {

// Rows of the head's products: whole blocks until a chunk is full, as head_loss takes them.
std::vector<int64_t> head_chunks(const StepShape& s, const Pass& pass, int64_t chunk_rows) {
  std::vector<int64_t> chunks(1, 0);
  for (int64_t b = pass.first; b < pass.first + pass.count; ++b) {
    const auto first = s.blocks.valid.begin() + b * s.model.block;
    const int64_t valid = std::count(first, first + s.model.block, uint8_t{1});
    if (chunks.back() + valid > chunk_rows) chunks.push_back(0);
    chunks.back() += valid;
  }
  return chunks;
}

void add_pass(std::vector<StepProduct>& out, const StepShape& s, const Pass& pass, int64_t chunk_rows) {
  const DrafterModel& m = s.model;
  const int64_t h = m.hidden, i = m.intermediate, q = m.heads * m.head_dim, kv = 2 * m.kv_heads * m.head_dim;
  const int64_t rows = pass.rows;
  const bool fp8 = s.limits.fp8, fp8_head = s.limits.fp8_head;
  const auto add = [&](const char* name, Product form, int64_t pm, int64_t pn, int64_t pk,
                       bool accumulate = false) {
    out.push_back({name, form, pm, pn, pk, form == Product::tn, accumulate || form == Product::tn, false, fp8,
                   m.layers * s.rows});
  };
  add("q forward", Product::nt, rows, q, h);
  add("kv forward", Product::nt, rows, kv, h);
  add("o forward", Product::nt, rows, h, q);
  add("gate_up forward", Product::nt, rows, 2 * i, h);
  add("down forward", Product::nt, rows, h, i);
  for (const int64_t chunk : head_chunks(s, pass, chunk_rows)) {
    out.push_back({"head logits", Product::nt, chunk, m.vocab, h, false, false, true, fp8_head, s.rows});
    out.push_back(
        {"head input gradient", Product::nn, chunk, h, m.vocab, false, false, true, fp8_head, s.rows});
  }
  add("down input gradient", Product::nn, rows, i, h);
  add("down weight gradient", Product::tn, h, i, rows);
  add("gate_up input gradient", Product::nn, rows, h, 2 * i);
  add("gate_up weight gradient", Product::tn, 2 * i, h, rows);
  add("o input gradient", Product::nn, rows, q, h);
  add("o weight gradient", Product::tn, h, q, rows);
  add("q input gradient", Product::nn, rows, h, q);
  add("kv input gradient", Product::nn, rows, h, kv, true);
  add("q weight gradient", Product::tn, q, h, rows);
  add("kv weight gradient", Product::tn, kv, h, rows);
}

template <class T> struct Operands {
  T *a, *b, *c;
  Acc<T>* gradient;
  E4m3 *a8, *b8;  // the same quantized, for products in fp8
  float *a_scale, *b_scale;
};

// As the drafter asks for it: sums over K, K contiguous, in short accumulators forward.
template <class T> void run_fp8_product(const StepProduct& p, const Operands<T>& o, const Queue& q) {
  const int64_t k = fp8_padded(p.k);
  const Fp8Rows a{{o.a8, p.m, k}, o.a_scale}, b{{o.b8, p.n, k}, o.b_scale};
  if (p.weight_gradient) {
    fp8_matmul<T, Acc<T>>({a, b, {o.gradient, p.m, p.n}, p.accumulate}, q);
  } else {
    fp8_matmul<T, T>({a, b, {o.c, p.m, p.n}, p.accumulate, p.form == Product::nt}, q);
  }
}

template <class T> void run_product(const StepProduct& p, const Operands<T>& o, const Queue& q) {
  if (p.fp8) return run_fp8_product(p, o, q);
  const bool tn = p.form == Product::tn, nt = p.form == Product::nt;
  const View2<const T> a(o.a, tn ? p.k : p.m, tn ? p.m : p.k), b(o.b, nt ? p.n : p.k, nt ? p.k : p.n);
  if (p.weight_gradient) {
    matmul<T, Acc<T>>({p.form, a, b, {o.gradient, p.m, p.n}, p.accumulate}, q);
  } else {
    matmul<T, T>({p.form, a, b, {o.c, p.m, p.n}, p.accumulate}, q);
  }
}

}  // namespace

std::vector<StepProduct> step_products(const StepShape& s, int64_t chunk_rows) {
  const DrafterModel& m = s.model;
  const bool fp8 = s.limits.fp8;
  const int64_t h = m.hidden, features = static_cast<int64_t>(m.taps.size()) * h;
  const int64_t kv = m.layers * 2 * m.kv_heads * m.head_dim, context = s.context();
  std::vector<StepProduct> out;
  out.push_back({"fc forward", Product::nt, context, h, features, false, false, false, fp8, s.rows});
  out.push_back({"context kv forward", Product::nt, context, kv, h, false, false, false, fp8, s.rows});
  for (const Pass& pass : s.passes) add_pass(out, s, pass, chunk_rows);
  out.push_back({"context kv input gradient", Product::nn, context, h, kv, false, false, false, fp8, s.rows});
  out.push_back({"context kv weight gradient", Product::tn, kv, h, context, true, true, false, fp8, s.rows});
  out.push_back({"fc weight gradient", Product::tn, h, features, context, true, true, false, fp8, s.rows});
  return out;
}

std::vector<StepProduct> target_products(const TargetModel& m, int64_t layers, int64_t tokens) {
  int64_t linear = 0;
  for (int64_t l = 0; l < layers; ++l) linear += m.is_linear(l);
  std::vector<StepProduct> out;
  const auto add = [&](const char* name, int64_t n, int64_t k, int64_t times) {
    if (times > 0) out.push_back({name, Product::nt, tokens, n, k, false, false, false, false, times});
  };
  add("in of attention", attention_columns(m), m.hidden, layers - linear);
  add("o of attention", m.hidden, m.heads * m.head_dim, layers - linear);
  add("in of delta nets", delta_columns(m), m.hidden, linear);
  add("o of delta nets", m.hidden, m.delta.values(), linear);
  add("gate_up", 2 * m.intermediate, m.hidden, layers);
  add("down", m.hidden, m.intermediate, layers);
  return out;
}

double total_flops(const std::vector<StepProduct>& list) {
  double sum = 0;
  for (const StepProduct& p : list) sum += p.flops() * static_cast<double>(p.times);
  return sum;
}

template <class T>
std::function<void()> products_alone(const std::vector<StepProduct>& list, Arena& arena, const Queue& q) {
  int64_t a = 0, b = 0, c = 0, gradient = 0, rows = 0;
  bool fp8 = false;
  for (const StepProduct& p : list) {
    const int64_t k = fp8_padded(p.k);
    fp8 |= p.fp8;
    rows = std::max({rows, p.m, p.n});
    a = std::max(a, p.m * k);
    b = std::max(b, p.n * k);
    (p.weight_gradient ? gradient : c) = std::max(p.weight_gradient ? gradient : c, p.m * p.n);
  }
  constexpr int64_t kCols = 4096;  // of what is quantized below: any would do, but few make too many rows
  if (fp8) {
    a = (a + kCols - 1) / kCols * kCols;
    b = (b + kCols - 1) / kCols * kCols;
  }
  Operands<T> o{arena.take<T>("a", a), arena.take<T>("b", b), arena.take<T>("c", c),
                arena.take<Acc<T>>("gradient", gradient)};
  fill_random<T>({o.a, a, 0, 1, 1, 1}, q);
  fill_random<T>({o.b, b, 0, 0.02f, 1, 2}, q);
  if (fp8) {  // codes of numbers of that spread, whatever their rows; one scale is as good as another
    const auto quantized = [&](const char* name, const T* x, int64_t count, float*& scale) {
      E4m3* const to = arena.take<E4m3>(name, count);
      scale = arena.take<float>(name, std::max(rows, count / kCols));
      auto* const largest = arena.take<uint32_t>(name, count / kCols + kCols);
      quantize_fp8<T>({{x, count / kCols, kCols}, {{to, count / kCols, kCols}, scale}, {}, largest}, q);
      return to;
    };
    o.a8 = quantized("a.fp8", o.a, a, o.a_scale);
    o.b8 = quantized("b.fp8", o.b, b, o.b_scale);
  }
  return [list, o, q] {
    for (const StepProduct& p : list) {
      for (int64_t i = 0; i < p.times; ++i) run_product<T>(p, o, q);
    }
  };
}

template std::function<void()> products_alone<float>(const std::vector<StepProduct>&, Arena&, const Queue&);
#if SLIP_HAVE_CUDA
template std::function<void()> products_alone<Bf16>(const std::vector<StepProduct>&, Arena&, const Queue&);
#endif

}  // namespace slip
