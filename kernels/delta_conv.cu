#include <cuda_runtime.h>

#include "device/cuda.hpp"
#include "kernels/delta_conv.hpp"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"

namespace slip {
namespace {

// In bf16 the approximations are far below the rounding of the result.
template <class T> __device__ float silu(float z) {
  if constexpr (sizeof(T) == 2) return __fdividef(z, 1 + __expf(-z));
  return z / (1 + expf(-z));
}

// Four taps, heads of 128. A thread has 4 channels, a warp the 128 of one head; a block walks over kTokens
// tokens with the last four rows of its channels in registers, kBatch loads at a time in flight, so that x is
// read once and three rows more a block.
constexpr int kTokens = 32, kBatch = 8, kChannels = 4;

template <class T>
__global__ void __launch_bounds__(256) conv_kernel(const __grid_constant__ DeltaConvFwd<T> a) {
  const int tokens = int(a.x.rows), channel = (blockIdx.x * 256 + threadIdx.x) * kChannels;
  if (channel >= a.x.cols) return;  // whole warps
  const int first = blockIdx.y * kTokens, end = min(first + kTokens, tokens);
  const bool normed = channel < a.normed;
  Vec<kChannels> tap[kChannels], x[4];  // taps of a channel; a ring of rows, zero before the document
#pragma unroll
  for (int e = 0; e < kChannels; ++e) tap[e] = load<4>(a.taps + (channel + e) * 4);
  const int at = a.position[first];
#pragma unroll
  for (int k = 1; k < 4; ++k)
    x[4 - k] = at >= k ? load<kChannels>(a.x.row(first - k) + channel) : Vec<kChannels>{};
#pragma unroll 1
  for (int t = first; t < end; t += kBatch) {
    Vec<kChannels> next[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) next[i] = load<kChannels>(a.x.row(min(t + i, tokens - 1)) + channel);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (t + i >= end) break;
      if (a.position[t + i] == 0) {
#pragma unroll
        for (int k = 1; k < 4; ++k) x[(i - k) & 3] = {};
      }
      x[i & 3] = next[i];
      Vec<kChannels> y;
      float square = 0;
#pragma unroll
      for (int e = 0; e < kChannels; ++e) {
        float sum = tap[e][3] * x[i & 3][e];
#pragma unroll
        for (int k = 1; k < 4; ++k) sum = fmaf(tap[e][3 - k], x[(i - k) & 3][e], sum);
        y[e] = silu<T>(sum);
        square = fmaf(y[e], y[e], square);
      }
      if (normed) {
        const float inv = rsqrtf(warp_sum(square) + kL2NormEps);
#pragma unroll
        for (int e = 0; e < kChannels; ++e) y[e] *= inv;
      }
      store<kChannels>(a.y.row(t + i) + channel, y);
    }
  }
}

// Any shape: a warp has one token of head_dim channels.
constexpr int kMaxDim = 256;
template <class T>
__global__ void __launch_bounds__(256) conv_simple_kernel(const __grid_constant__ DeltaConvFwd<T> a) {
  const int units = int((a.x.cols + a.head_dim - 1) / a.head_dim);
  const int64_t item = blockIdx.x * int64_t(8) + warp_id(), t = item / units;
  if (t >= a.x.rows) return;
  const int64_t first = item % units * a.head_dim, end = min(first + a.head_dim, a.x.cols);
  const int taps = min(a.tap_count, a.position[t] + 1);
  float y[kMaxDim / 32], square = 0;
#pragma unroll
  for (int e = 0; e < kMaxDim / 32; ++e) {
    const int64_t c = first + lane_id() + 32 * e;
    if (c >= end) continue;
    float sum = 0;
    for (int j = 0; j < taps; ++j)
      sum = fmaf(to_float(a.taps[c * a.tap_count + a.tap_count - 1 - j]), to_float(a.x.at(t - j, c)), sum);
    y[e] = silu<T>(sum);
    square = fmaf(y[e], y[e], square);
  }
  const float inv = first < a.normed ? rsqrtf(warp_sum(square) + kL2NormEps) : 1;
#pragma unroll
  for (int e = 0; e < kMaxDim / 32; ++e) {
    const int64_t c = first + lane_id() + 32 * e;
    if (c < end) a.y.at(t, c) = from_float<T>(y[e] * inv);
  }
}

// A thread has a column of a group: source and destination may overlap.
template <class T>
__global__ void __launch_bounds__(256) keep_rows_kernel(const __grid_constant__ KeepRows<T> a) {
  const int64_t column = blockIdx.x * 256 + threadIdx.x, first = blockIdx.y * a.group;
  if (column >= a.rows.cols) return;
  for (int i = 0; i < a.keep; ++i) a.rows.at(first + i, column) = a.rows.at(first + a.from + i, column);
}

}  // namespace

template <class T> void keep_rows_cuda(const KeepRows<T>& a, CudaStream stream) {
  if (a.rows.rows == 0 || a.rows.cols == 0 || a.keep == 0 || a.from == 0) return;
  const dim3 grid(unsigned((a.rows.cols + 255) / 256), unsigned(a.rows.rows / a.group));
  keep_rows_kernel<T><<<grid, 256, 0, stream>>>(a);
  check(cudaGetLastError());
}

template <class T> void delta_conv_fwd_cuda(const DeltaConvFwd<T>& a, CudaStream stream) {
  require(a.y.rows == a.x.rows && a.y.cols == a.x.cols, "delta_conv_fwd: y must have the shape of x");
  require(a.head_dim >= 1 && a.head_dim <= kMaxDim, "delta_conv_fwd: heads of 1 to 256 channels");
  require(a.tap_count >= 1 && a.tap_count <= kMaxConvTaps, "delta_conv_fwd: 1 to 8 taps");
  require(a.normed <= a.x.cols && a.normed % a.head_dim == 0, "delta_conv_fwd: whole heads are normed");
  require(a.x.rows < 1 << 20 && a.x.cols < 1 << 20, "delta_conv_fwd: too large for one launch");
  if (a.x.rows == 0 || a.x.cols == 0) return;
  if (a.tap_count == 4 && a.head_dim == 128 && a.x.cols % 128 == 0 && all_fit<kChannels>(a.x, a.y, a.taps)) {
    const dim3 grid(unsigned((a.x.cols + 1023) / 1024), unsigned((a.x.rows + kTokens - 1) / kTokens));
    conv_kernel<T><<<grid, 256, 0, stream>>>(a);
  } else {
    const int64_t items = a.x.rows * ((a.x.cols + a.head_dim - 1) / a.head_dim);
    conv_simple_kernel<T><<<unsigned((items + 7) / 8), 256, 0, stream>>>(a);
  }
  check(cudaGetLastError());
}

template void keep_rows_cuda(const KeepRows<float>&, CudaStream);
template void keep_rows_cuda(const KeepRows<Bf16>&, CudaStream);
template void delta_conv_fwd_cuda(const DeltaConvFwd<float>&, CudaStream);
template void delta_conv_fwd_cuda(const DeltaConvFwd<Bf16>&, CudaStream);

}  // namespace slip
