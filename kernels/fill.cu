#include <cuda_runtime.h>

#include "core/random.hpp"
#include "device/cuda.hpp"
#include "kernels/fill.hpp"

namespace slip {
namespace {

constexpr int kThreads = 256;

// A thread has one element: one Philox call, one store.
template <class T> __global__ void fill_random_kernel(const __grid_constant__ FillRandom<T> a) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i >= a.count) return;
  const float noise = a.sigma == 0 ? 0 : a.sigma * random_normal(a.seed, a.name, uint64_t(i));
  a.out[i] = from_float<T>(round_bf16(a.mean + noise));
}

}  // namespace

template <class T> void fill_random_cuda(const FillRandom<T>& a, CudaStream stream) {
  const int64_t blocks = (a.count + kThreads - 1) / kThreads;
  require(blocks < (1ll << 31), "fill_random: too many elements for one launch");
  if (blocks == 0) return;
  fill_random_kernel<T><<<unsigned(blocks), kThreads, 0, stream>>>(a);
  check(cudaGetLastError());
}

template void fill_random_cuda(const FillRandom<float>&, CudaStream);
template void fill_random_cuda(const FillRandom<Bf16>&, CudaStream);

}  // namespace slip
