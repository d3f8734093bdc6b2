// The running softmax of a computing warpgroup: each thread has two rows of its scores (see wgmma.cuh), a
// quad of lanes a row.
#pragma once
#include "kernels/device/hopper.cuh"

namespace slip::hopper {

struct Softmax {
  float m[2], l[2];  // of this thread's two rows: maximum, sum of its columns
  float c;           // scale * log2(e)
};
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
// Of the first n scores, joined to x.
template <int n, int size>
__device__ __forceinline__ void row_maximum(float (&x)[2], const float (&s)[size]) {
  float y[4] = {x[0], x[0], x[1], x[1]};  // short chains
#pragma unroll
  for (int e = 0; e < n; ++e) y[e & 3] = fmaxf(y[e & 3], s[e]);
#pragma unroll
  for (int h = 0; h < 2; ++h) x[h] = fmaxf(y[2 * h], y[2 * h + 1]);
}
// The first n scores to exponentials; their sums to l.
template <int n, int size> __device__ __forceinline__ void exponentials(Softmax& y, float (&s)[size]) {
  const float mc[2] = {y.m[0] * y.c, y.m[1] * y.c};
#pragma unroll
  for (int e = 0; e < n; ++e) {
    s[e] = exp2_ftz(fmaf(s[e], y.c, -mc[(e >> 1) & 1]));
    y.l[(e >> 1) & 1] += s[e];
  }
}
// The old maximum stays while no row exceeds it by more than 8 in log2 units: sums grow at most 256-fold, and
// most tiles save the rescaling of the output, by f. True when it has to be done.
template <int n>
__device__ __forceinline__ bool follow_maximum(Softmax& y, const float (&s)[n], float (&f)[2]) {
  float x[2] = {y.m[0], y.m[1]};
  row_maximum<n>(x, s);
#pragma unroll
  for (int h = 0; h < 2; ++h) x[h] = quad_max(x[h]);
  if (!__any_sync(~0u, (x[0] - y.m[0]) * y.c > 8.f || (x[1] - y.m[1]) * y.c > 8.f)) return false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    f[h] = exp2_ftz((y.m[h] - x[h]) * y.c);
    y.m[h] = x[h];
    y.l[h] *= f[h];
  }
  return true;
}

}  // namespace slip::hopper
