// Sums and maxima over a warp and over a block. The order is fixed, so the bits are too.
#pragma once
#include <cuda_runtime.h>

namespace slip {

__device__ inline int lane_id() { return threadIdx.x % 32; }
__device__ inline int warp_id() { return threadIdx.x / 32; }

// Over aligned groups of `width` lanes, a power of two; every lane of the group has the result.
template <class A> __device__ inline A group_sum(A x, int width) {
  for (int o = width / 2; o > 0; o /= 2) x += __shfl_xor_sync(~0u, x, o);
  return x;
}
template <class A> __device__ inline A warp_sum(A x) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(~0u, x, o);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
  return x;
}

// Every thread has the result. One barrier: `shared` holds 32 elements, and two calls in a row need two of
// them (a third may use the first again).
template <class A> __device__ inline A block_sum(A x, A* shared) {
  x = warp_sum(x);
  if (lane_id() == 0) shared[warp_id()] = x;
  __syncthreads();
  return warp_sum(lane_id() < int(blockDim.x / 32) ? shared[lane_id()] : A(0));
}

}  // namespace slip
