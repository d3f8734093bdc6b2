// The second half of a sum over rows: kernels leave one partial row a block in scratch, and this adds them up
// in a fixed order, whatever the GPU.
#pragma once
#include "device/cuda.hpp"
#include "device/queue.hpp"
#include "kernels/device/reduce.cuh"
#include "kernels/partials.hpp"

namespace slip {

// out[c] += sum over parts of partial[part][c]. A block has 32 columns and 32 threads for each of them; the
// partial rows are read once.
template <class A> __global__ void column_sum_kernel(const A* partial, int parts, int64_t cols, A* out) {
  __shared__ A sums[32][33];
  const int64_t c = blockIdx.x * int64_t(32) + threadIdx.x;
  A sum = 0;
  if (c < cols) {
#pragma unroll 8
    for (int p = threadIdx.y; p < parts; p += 32) sum += partial[p * cols + c];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  const int64_t column = blockIdx.x * int64_t(32) + threadIdx.y;  // a warp sums one column
  const A total = warp_sum(sums[threadIdx.x][threadIdx.y]);
  if (threadIdx.x == 0 && column < cols) out[column] += total;
}
template <class A>
void add_column_sums(const A* partial, int parts, int64_t cols, A* out, CudaStream stream) {
  column_sum_kernel<A><<<unsigned((cols + 31) / 32), dim3(32, 32), 0, stream>>>(partial, parts, cols, out);
  check(cudaGetLastError());
}

}  // namespace slip
