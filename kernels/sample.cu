#include <cuda_runtime.h>

#include "device/cuda.hpp"
#include "kernels/device/dependent.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/sample.hpp"

namespace slip {
namespace {

constexpr int kThreads = 1024, kAtOnce = 4;

// One block a row: every thread scans its share of the ids, W at a time and a few loads ahead, then halves
// merge in shared memory.
template <class T, int W>
__global__ void __launch_bounds__(kThreads) sample_rows_kernel(const __grid_constant__ SampleRows<T> a) {
  __shared__ Best<float> found[kThreads];
  allow_next();
  await_previous();
  const int64_t row = blockIdx.x;
  const int vocab = int(a.logits.cols);
  Best<float> best = Best<float>::none();
  for (int at = threadIdx.x * W; at < vocab; at += kAtOnce * kThreads * W) {
    Vec<W> logits[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int id = at + u * kThreads * W;
      if (id < vocab) logits[u] = load<W>(a.logits.row(row) + id);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int id = at + u * kThreads * W;
      if (id >= vocab) break;
      float most = -INFINITY;
#pragma unroll
      for (int i = 0; i < W; ++i) {
        logits[u][i] = sample_score(a, row, id + i, logits[u][i]);
        most = fmaxf(most, logits[u][i]);
      }
      // Ids ascend: what is not above the second changes nothing.
      if (best.id >= 0 && most <= best.second) continue;
#pragma unroll
      for (int i = 0; i < W; ++i) best.add(logits[u][i], id + i);
    }
  }
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
  require(a.logits.cols >= 1 && a.logits.cols < (int64_t{1} << 30), "sample_rows: no or too many columns");
  if (a.logits.rows == 0) return;
  const auto kernel = fits<4>(a.logits) ? sample_rows_kernel<T, 4> : sample_rows_kernel<T, 1>;
  launch_early(kernel, unsigned(a.logits.rows), kThreads, 0, stream, a);
}

template void sample_rows_cuda(const SampleRows<float>&, CudaStream);
template void sample_rows_cuda(const SampleRows<Bf16>&, CudaStream);

}  // namespace slip
