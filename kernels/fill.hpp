// Counter-based numbers written where the queue's memory is: weights and features for timing, without files.
#pragma once
#include <cstdint>
#include <type_traits>

#include "device/queue.hpp"

namespace slip {

// out[i] = mean + sigma * N(0,1) of (seed, name, i), rounded to bf16 in every type, as published weights are.
// Host and device round their logarithms differently, so a value may differ by one step of bf16 between them.
template <class T> struct FillRandom {
  T* out;  // (count)
  int64_t count;
  float mean, sigma;  // sigma 0: the constant `mean`
  uint64_t seed, name;
};
template <class T>
void fill_random_cpu(const FillRandom<T>&);  // float, double, Bf16: features are bf16 everywhere
template <class T> void fill_random_cuda(const FillRandom<T>&, CudaStream);
template <class T> void fill_random(const FillRandom<T>& a, const Queue& q) {
  using BackEnds = std::conditional_t<std::is_same_v<T, double>, double, float>;
  dispatch<BackEnds>(
      q, [&](auto) { fill_random_cpu(a); }, [&](auto s) { fill_random_cuda(a, s); });
}

}  // namespace slip
