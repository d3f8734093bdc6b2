// AdamW over one flat buffer of all parameters, with fp32 masters and moments (decoupled decay, Loshchilov
// and Hutter, arXiv 1711.05101), and the global norm that clipping needs. Weights in T are written in the
// same pass.
#pragma once
#include <cstdint>

#include "device/queue.hpp"

namespace slip {

template <class T> struct AdamW {
  int64_t count;
  Acc<T>* master;      // (count)
  Acc<T>* m;           // (count) first moment
  Acc<T>* v;           // (count) second moment
  const Acc<T>* grad;  // (count)
  T* weight;           // (count) working copy
  bool round_weight;   // float on the CPU: keep bf16-representable weights (train.precision=bf16)
  float lr, beta1, beta2, eps, weight_decay;
  float grad_scale;  // 1/denominator times the clip coefficient
  int64_t step;      // 1 for the first update: bias correction
};
template <class T> void adamw_cpu(const AdamW<T>&);
template <class T> void adamw_cuda(const AdamW<T>&, CudaStream);
template <class T> void adamw(const AdamW<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { adamw_cpu(a); }, [&](auto s) { adamw_cuda(a, s); });
}

// Sum of squares in double, in a fixed order: the same bits every time.
template <class T> struct SumSquares {
  int64_t count;
  const Acc<T>* values;
  double* sum;      // (1) where the queue's memory is
  double* scratch;  // sum_squares_scratch() elements; the CPU needs none
};
int64_t sum_squares_scratch(Device);
template <class T> void sum_squares_cpu(const SumSquares<T>&);
template <class T> void sum_squares_cuda(const SumSquares<T>&, CudaStream);
template <class T> void sum_squares(const SumSquares<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { sum_squares_cpu(a); }, [&](auto s) { sum_squares_cuda(a, s); });
}

}  // namespace slip
