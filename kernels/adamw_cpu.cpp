#include <cmath>

#include "kernels/adamw.hpp"

namespace slip {

template <class T> void adamw_cpu(const AdamW<T>& a) {
  const T correct1 = T(1) / (T(1) - std::pow(T(a.beta1), static_cast<T>(a.step)));
  const T correct2 = T(1) / (T(1) - std::pow(T(a.beta2), static_cast<T>(a.step)));
  const T beta1 = a.beta1, beta2 = a.beta2, lr = a.lr, eps = a.eps, decay = lr * T(a.weight_decay),
          scale = a.grad_scale;
  for (int64_t i = 0; i < a.count; ++i) {
    const T g = a.grad[i] * scale;
    a.m[i] = beta1 * a.m[i] + (T(1) - beta1) * g;
    a.v[i] = beta2 * a.v[i] + (T(1) - beta2) * g * g;
    a.master[i] -= decay * a.master[i] + lr * (a.m[i] * correct1) / (std::sqrt(a.v[i] * correct2) + eps);
    a.weight[i] = a.master[i];
  }
  if (!a.round_weight) return;
  for (int64_t i = 0; i < a.count; ++i)
    a.weight[i] = static_cast<T>(round_bf16(static_cast<float>(a.weight[i])));
}

template <class T> void sum_squares_cpu(const SumSquares<T>& a) {
  // Eight running sums, always in this order: vector units may take them side by side, the bits stay.
  double part[8] = {};
  int64_t i = 0;
  for (; i + 8 <= a.count; i += 8) {
    for (int k = 0; k < 8; ++k)
      part[k] += static_cast<double>(a.values[i + k]) * static_cast<double>(a.values[i + k]);
  }
  for (; i < a.count; ++i) part[0] += static_cast<double>(a.values[i]) * static_cast<double>(a.values[i]);
  *a.sum = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

template void adamw_cpu(const AdamW<float>&);
template void adamw_cpu(const AdamW<double>&);
template void sum_squares_cpu(const SumSquares<float>&);
template void sum_squares_cpu(const SumSquares<double>&);

}  // namespace slip
