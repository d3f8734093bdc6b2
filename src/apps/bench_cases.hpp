// The operations that `bench ops` times: for each its shape, what it computes and moves, and how to set it
// up.
#pragma once
#include "apps/bench_shapes.hpp"

namespace slip {

using Work = std::function<void()>;

struct BenchCase {
  std::string op, name;
  Dims dims;
  double flops = 0, bytes = 0;          // bytes: every input read once, every output written once
  double per_step = 0;                  // calls of a drafter step; 0: no part of one, or of another case
  std::function<Work(Arena&)> prepare;  // takes memory and fills it; what it returns runs the operation once
  // Name of an earlier case of the op: the row also says what a live pair costs here relative to there.
  std::string against = {};
};
using BenchCases = std::vector<BenchCase>;

template <class T> BenchCases matmul_cases(const StepShape&, const Queue&);
template <class T> BenchCases quantize_fp8_cases(const StepShape&, const Queue&);
template <class T> BenchCases block_attention_cases(const StepShape&, const Queue&);
template <class T> BenchCases causal_attention_cases(const StepShape&, const Queue&);
template <class T> BenchCases rmsnorm_cases(const StepShape&, const Queue&);
template <class T> BenchCases head_rope_cases(const StepShape&, const Queue&);
template <class T> BenchCases swiglu_cases(const StepShape&, const Queue&);
template <class T> BenchCases feature_cases(const StepShape&, const Queue&);  // capture, join, cast
template <class T> BenchCases gather_rows_cases(const StepShape&, const Queue&);
template <class T> BenchCases head_loss_cases(const StepShape&, const Queue&);
template <class T> BenchCases zero_cases(const StepShape&, const Queue&);  // gradients
template <class T> BenchCases sum_squares_cases(const StepShape&, const Queue&);
template <class T> BenchCases adamw_cases(const StepShape&, const Queue&);

template <class T> struct Op {
  const char* name;
  BenchCases (*cases)(const StepShape&, const Queue&);
};
template <class T> const std::vector<Op<T>>& all_ops();

// Memory of a case, filled with N(0,1).
template <class T> View2<T> filled(Arena&, const char* name, int64_t rows, int64_t cols, const Queue&);
// Host values where the queue's memory is.
template <class V> V* uploaded(Arena&, const char* name, const std::vector<V>&, const Queue&);

}  // namespace slip
