// Operations that pass over rows once: norms, rotations, SwiGLU, gathers, features. Memory is their limit.
#include <algorithm>

#include "apps/bench_cases.hpp"
#include "kernels/embedding.hpp"
#include "kernels/features.hpp"
#include "kernels/rmsnorm.hpp"
#include "kernels/rope.hpp"
#include "kernels/swiglu.hpp"

namespace slip {
namespace {

template <class T> double moved(int64_t rows, int64_t cols, int64_t matrices) {
  return static_cast<double>(rows * cols * matrices) * sizeof(T);
}

struct RopeCase {
  const char* name;
  int64_t rows, heads;
  double per_step;
  std::vector<int> position;
};

template <class T>
BenchCases rope_cases(const RopeCase& c, const StepShape& s, bool context, const Queue& q) {
  const int64_t d = s.model.head_dim, cols = c.heads * d, positions = s.limits.positions;
  const int heads = static_cast<int>(c.heads), head_dim = static_cast<int>(d);
  const Dims dims{{"rows", c.rows}, {"heads", c.heads}, {"d", d}};
  const auto table = [=](Arena& a) {
    return RopeTable{filled<float>(a, "cos", positions, d / 2, q),
                     filled<float>(a, "sin", positions, d / 2, q)};
  };
  // The context's gradient is the fp32 sum over all blocks.
  const auto backward = [=]<class G>(Arena& a, G) -> Work {
    const HeadRopeBwd<T, G> x{
        .x = filled<T>(a, "x", c.rows, cols, q),
        .heads = heads,
        .head_dim = head_dim,
        .gain = filled<T>(a, "gain", 1, d, q).data,
        .inv_rms = filled<Acc<T>>(a, "inv_rms", c.rows, c.heads, q).data,
        .table = table(a),
        .position = uploaded(a, "position", c.position, q),
        .dy = filled<G>(a, "dy", c.rows, cols, q),
        .dx = a.take2<T>("dx", c.rows, cols),
        .dgain = a.take<Acc<T>>("dgain", d),
        .scratch = a.take<Acc<T>>("scratch", head_rope_bwd_scratch(c.rows, heads, head_dim, q.device))};
    return [=] { head_rope_bwd(x, q); };
  };
  const std::string name = c.name;
  return {{"head_rope", name + " forward", dims, 0, moved<T>(c.rows, cols, 2), c.per_step,
           [=](Arena& a) -> Work {
             const HeadRopeFwd<T> x{.x = filled<T>(a, "x", c.rows, cols, q),
                                    .heads = heads,
                                    .head_dim = head_dim,
                                    .gain = filled<T>(a, "gain", 1, d, q).data,
                                    .eps = 1e-6f,
                                    .table = table(a),
                                    .position = uploaded(a, "position", c.position, q),
                                    .y = a.take2<T>("y", c.rows, cols),
                                    .inv_rms = a.take<Acc<T>>("inv_rms", c.rows * c.heads)};
             return [=] { head_rope_fwd(x, q); };
           }},
          {"head_rope", name + " backward", dims, 0,
           moved<T>(c.rows, cols, 2) + (context ? moved<Acc<T>>(c.rows, cols, 1) : moved<T>(c.rows, cols, 1)),
           c.per_step, [=](Arena& a) { return context ? backward(a, Acc<T>()) : backward(a, T()); }}};
}

void append(BenchCases& to, BenchCases from) { std::move(from.begin(), from.end(), std::back_inserter(to)); }

}  // namespace

template <class T> BenchCases rmsnorm_cases(const StepShape& s, const Queue& q) {
  BenchCases out;
  const int64_t h = s.model.hidden;
  const auto add = [&](const char* where, int64_t rows, double calls, bool residual) {
    const Dims dims{{"rows", rows}, {"h", h}};
    const std::string name = where;
    out.push_back({"rmsnorm", name + " forward", dims, 0, moved<T>(rows, h, residual ? 4 : 2), calls,
                   [=](Arena& a) -> Work {
                     const RmsNormFwd<T> x{.x = filled<T>(a, "x", rows, h, q),
                                           .add = residual ? filled<T>(a, "add", rows, h, q) : View2<T>(),
                                           .sum = residual ? a.take2<T>("sum", rows, h) : View2<T>(),
                                           .gain = filled<T>(a, "gain", 1, h, q).data,
                                           .eps = 1e-6f,
                                           .y = a.take2<T>("y", rows, h),
                                           .inv_rms = a.take<Acc<T>>("inv_rms", rows)};
                     return [=] { rmsnorm_fwd(x, q); };
                   }});
    out.push_back({"rmsnorm", name + " backward", dims, 0, moved<T>(rows, h, residual ? 4 : 3), calls,
                   [=](Arena& a) -> Work {
                     const RmsNormBwd<T> x{
                         .x = filled<T>(a, "x", rows, h, q),
                         .gain = filled<T>(a, "gain", 1, h, q).data,
                         .inv_rms = filled<Acc<T>>(a, "inv_rms", 1, rows, q).data,
                         .dy = filled<T>(a, "dy", rows, h, q),
                         .residual = residual ? filled<T>(a, "residual", rows, h, q) : View2<T>(),
                         .dx = a.take2<T>("dx", rows, h),
                         .dgain = a.take<Acc<T>>("dgain", h),
                         .scratch = a.take<Acc<T>>("scratch", rmsnorm_bwd_scratch(rows, h, q.device))};
                     return [=] { rmsnorm_bwd(x, q); };
                   }});
  };
  const auto layers = static_cast<double>(s.model.layers), rows = static_cast<double>(s.rows);
  for (const Pass& pass : s.passes) add("with residual", pass.rows, (2 * layers + 1) * rows, true);
  add("context", s.context(), rows, false);
  const int64_t tokens = s.tokens();  // the target's norm behind a tapped layer
  out.push_back({"rmsnorm",
                 "forward, a tap captured",
                 {{"rows", tokens}, {"h", h}},
                 0,
                 moved<T>(tokens, h, 4) + moved<Bf16>(tokens, h, 1),
                 0,
                 [=](Arena& a) -> Work {
                   const RmsNormFwd<T> x{.x = filled<T>(a, "x", tokens, h, q),
                                         .add = filled<T>(a, "add", tokens, h, q),
                                         .sum = a.take2<T>("sum", tokens, h),
                                         .gain = filled<T>(a, "gain", 1, h, q).data,
                                         .eps = 1e-6f,
                                         .y = a.take2<T>("y", tokens, h),
                                         .inv_rms = nullptr,
                                         .capture = a.take<Bf16>("tap", tokens * h)};
                   return [=] { rmsnorm_fwd(x, q); };
                 }});
  return out;
}

template <class T> BenchCases head_rope_cases(const StepShape& s, const Queue& q) {
  const DrafterModel& m = s.model;
  const auto calls = static_cast<double>(m.layers * s.rows);
  BenchCases out;
  for (const Pass& pass : s.passes) {
    const auto first = s.blocks.position.begin() + pass.first * m.block;
    const std::vector<int> position(first, first + pass.rows);
    append(out, rope_cases<T>({"queries", pass.rows, m.heads, calls, position}, s, false, q));
    append(out, rope_cases<T>({"keys", pass.rows, m.kv_heads, calls, position}, s, false, q));
  }
  std::vector<int> position;
  for (const int64_t length : s.row.lengths) {
    for (int64_t p = 0; p < length; ++p) position.push_back(static_cast<int>(p));
  }
  position.resize(static_cast<size_t>(s.context()));
  append(out, rope_cases<T>({"context keys", s.context(), m.kv_heads, calls, position}, s, true, q));
  return out;
}

template <class T> BenchCases swiglu_cases(const StepShape& s, const Queue& q) {
  BenchCases out;
  const int64_t n = s.model.intermediate;
  const auto calls = static_cast<double>(s.model.layers * s.rows);
  for (const Pass& pass : s.passes) {
    const int64_t rows = pass.rows;
    const Dims dims{{"rows", rows}, {"i", n}};
    out.push_back(
        {"swiglu", "forward", dims, 0, moved<T>(rows, n, 3), calls, [=](Arena& a) -> Work {
           const SwigluFwd<T> x{filled<T>(a, "gate_up", rows, 2 * n, q), a.take2<T>("act", rows, n)};
           return [=] { swiglu_fwd(x, q); };
         }});
    out.push_back({"swiglu", "backward", dims, 0, moved<T>(rows, n, 6), calls, [=](Arena& a) -> Work {
                     const SwigluBwd<T> x{filled<T>(a, "gate_up", rows, 2 * n, q),
                                          filled<T>(a, "dact", rows, n, q),
                                          a.take2<T>("dgate_up", rows, 2 * n), a.take2<T>("act", rows, n)};
                     return [=] { swiglu_bwd(x, q); };
                   }});
  }
  return out;
}

template <class T> BenchCases feature_cases(const StepShape& s, const Queue& q) {
  const int64_t h = s.model.hidden, taps = static_cast<int64_t>(s.model.taps.size()), tokens = s.tokens();
  const int64_t context = s.context(), values = s.model.layers * s.model.kv_heads * s.model.head_dim;
  BenchCases out;
  out.push_back({"features",
                 "join_taps",
                 {{"tokens", context}, {"h", h}, {"taps", taps}},
                 0,
                 moved<T>(context, h, taps) + moved<Bf16>(context, h, taps),
                 static_cast<double>(s.rows),
                 [=](Arena& a) -> Work {
                   const JoinTaps<T> x{a.take<Bf16>("slot", taps * tokens * h), tokens,
                                       static_cast<int>(taps), a.take2<T>("x", context, taps * h),
                                       a.take<int>("non_finite", 1)};
                   return [=] { join_taps(x, q); };
                 }});
  out.push_back({"features",
                 "cast value gradients",
                 {{"tokens", context}, {"cols", values}},
                 0,
                 moved<T>(context, values, 1) + moved<Acc<T>>(context, values, 1),
                 static_cast<double>(s.rows),
                 [=](Arena& a) -> Work {
                   const Cast<Acc<T>, T> x{filled<Acc<T>>(a, "from", context, values, q),
                                           a.take2<T>("to", context, values)};
                   return [=] { cast<T>(x, q); };
                 }});
  return out;
}

template <class T> BenchCases gather_rows_cases(const StepShape& s, const Queue& q) {
  BenchCases out;
  const int64_t h = s.model.hidden, v = s.model.vocab;
  for (const Pass& pass : s.passes) {
    const auto first = s.blocks.ids.begin() + pass.first * s.model.block;
    const std::vector<int> ids(first, first + pass.rows);
    out.push_back({"gather_rows",
                   "embedding",
                   {{"rows", pass.rows}, {"h", h}},
                   0,
                   moved<T>(pass.rows, h, 2),
                   static_cast<double>(s.rows),
                   [=](Arena& a) -> Work {
                     const GatherRows<T> x{filled<T>(a, "table", v, h, q), uploaded(a, "ids", ids, q),
                                           a.take2<T>("out", pass.rows, h)};
                     return [=] { gather_rows(x, q); };
                   }});
  }
  return out;
}

#define SLIP_INSTANTIATE(T)                                               \
  template BenchCases rmsnorm_cases<T>(const StepShape&, const Queue&);   \
  template BenchCases head_rope_cases<T>(const StepShape&, const Queue&); \
  template BenchCases swiglu_cases<T>(const StepShape&, const Queue&);    \
  template BenchCases feature_cases<T>(const StepShape&, const Queue&);   \
  template BenchCases gather_rows_cases<T>(const StepShape&, const Queue&);
SLIP_INSTANTIATE(float)
#if SLIP_HAVE_CUDA
SLIP_INSTANTIATE(Bf16)
#endif

}  // namespace slip
