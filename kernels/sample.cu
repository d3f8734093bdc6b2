#include <cuda_runtime.h>

#include "device/cuda.hpp"
#include "kernels/device/reduce.cuh"
#include "kernels/sample.hpp"

namespace slip {
namespace {

constexpr int kThreads = 512;

// One block a row: every thread scans its share of the ids, then halves merge in shared memory.
template <class T> __global__ void sample_rows_kernel(const __grid_constant__ SampleRows<T> a) {
  __shared__ Best<float> found[kThreads];
  const int64_t row = blockIdx.x;
  Best<float> best = Best<float>::none();
  for (int64_t id = threadIdx.x; id < a.logits.cols; id += kThreads)
    best.add(sample_score(a, row, id), int(id));
  found[threadIdx.x] = best;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (int(threadIdx.x) < half) found[threadIdx.x].merge(found[threadIdx.x + half]);
  }
  if (threadIdx.x == 0) {
    a.token[row] = found[0].id;
    a.margin[row] = found[0].first - found[0].second;
  }
}

}  // namespace

template <class T> void sample_rows_cuda(const SampleRows<T>& a, CudaStream stream) {
  require(a.logits.cols >= 1 && a.logits.cols < (int64_t{1} << 31), "sample_rows: no or too many columns");
  if (a.logits.rows == 0) return;
  sample_rows_kernel<T><<<unsigned(a.logits.rows), kThreads, 0, stream>>>(a);
  check(cudaGetLastError());
}

template void sample_rows_cuda(const SampleRows<float>&, CudaStream);
template void sample_rows_cuda(const SampleRows<Bf16>&, CudaStream);

}  // namespace slip
