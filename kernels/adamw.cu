#include <cuda_runtime.h>

#include <cmath>

#include "device/cuda.hpp"
#include "kernels/adamw.hpp"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/partials.hpp"

namespace slip {
namespace {

constexpr int kThreads = 256;

struct BiasCorrection {
  float first, second;  // 1 / (1 - beta^step)
};

// One pass over all parameters: 16 bytes read and 12 plus the weight written for each. A thread has W of
// them; the last count % W are one each for the first threads.
template <class T, int W> __device__ void adamw_pack(const AdamW<T>& a, BiasCorrection correct, int64_t i) {
  Vec<W> master = load<W>(a.master + i), m = load<W>(a.m + i), v = load<W>(a.v + i), weight;
  const Vec<W> grad = load<W>(a.grad + i);
#pragma unroll
  for (int k = 0; k < W; ++k) {
    const float g = grad[k] * a.grad_scale;
    m[k] = a.beta1 * m[k] + (1 - a.beta1) * g;
    v[k] = a.beta2 * v[k] + (1 - a.beta2) * g * g;
    master[k] -= a.lr * a.weight_decay * master[k] +
                 a.lr * (m[k] * correct.first) / (sqrtf(v[k] * correct.second) + a.eps);
    weight[k] = a.round_weight ? rounded<Bf16>(master[k]) : master[k];
  }
  store<W>(a.master + i, master);
  store<W>(a.m + i, m);
  store<W>(a.v + i, v);
  store<W>(a.weight + i, weight);
}
template <class T, int W>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(const __grid_constant__ AdamW<T> a, BiasCorrection correct) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x, packs = a.count / W;
  if (i < packs) adamw_pack<T, W>(a, correct, i * W);
  if (i < a.count % W) adamw_pack<T, 1>(a, correct, packs * W + i);
}

// Thread i of the grid adds packs i, i + threads, ...; one sum a block goes to scratch. Values are read once.
template <int W>
__global__ void __launch_bounds__(kThreads)
    sum_squares_kernel(const float* values, int64_t count, double* scratch) {
  __shared__ double shared[32];
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x, threads = int64_t(gridDim.x) * kThreads,
                packs = count / W;
  double sum = 0;
#pragma unroll 4
  for (int64_t p = i; p < packs; p += threads) {
    const Vec<W> x = load<W>(values + p * W);
#pragma unroll
    for (int k = 0; k < W; ++k) sum += double(x[k]) * double(x[k]);
  }
  if (i < count % W) sum += double(values[packs * W + i]) * double(values[packs * W + i]);
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) scratch[blockIdx.x] = sum;
}
__global__ void __launch_bounds__(1024) sum_partials_kernel(const double* scratch, int parts, double* sum) {
  __shared__ double shared[32];
  double x = 0;
  for (int p = threadIdx.x; p < parts; p += 1024) x += scratch[p];
  x = block_sum(x, shared);
  if (threadIdx.x == 0) *sum = x;
}

}  // namespace

template <class T> void adamw_cuda(const AdamW<T>& a, CudaStream stream) {
  require(a.step >= 1, "adamw: the first step is 1");
  if (a.count == 0) return;
  const auto correction = [&](float beta) { return float(1 / (1 - std::pow(double(beta), double(a.step)))); };
  const BiasCorrection correct{correction(a.beta1), correction(a.beta2)};
  const bool wide = all_fit<4>(a.master, a.m, a.v, a.grad, a.weight);
  const int64_t packs = wide ? a.count / 4 + 1 : a.count;  // one more, should fewer than 4 be all there is
  const auto kernel = wide ? adamw_kernel<T, 4> : adamw_kernel<T, 1>;
  kernel<<<unsigned((packs + kThreads - 1) / kThreads), kThreads, 0, stream>>>(a, correct);
  check(cudaGetLastError());
}

template <class T> void sum_squares_cuda(const SumSquares<T>& a, CudaStream stream) {
  const int parts = kSquareParts;
  const auto kernel = fits<4>(a.values) ? sum_squares_kernel<4> : sum_squares_kernel<1>;
  kernel<<<parts, kThreads, 0, stream>>>(a.values, a.count, a.scratch);
  check(cudaGetLastError());
  sum_partials_kernel<<<1, 1024, 0, stream>>>(a.scratch, parts, a.sum);
  check(cudaGetLastError());
}

template void adamw_cuda(const AdamW<float>&, CudaStream);
template void adamw_cuda(const AdamW<Bf16>&, CudaStream);
template void sum_squares_cuda(const SumSquares<float>&, CudaStream);
template void sum_squares_cuda(const SumSquares<Bf16>&, CudaStream);

}  // namespace slip
