#include <cuda_runtime.h>

#include "device/cuda.hpp"
#include "kernels/device/column_sum.cuh"
#include "kernels/device/dependent.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/rmsnorm.hpp"

namespace slip {
namespace {

// A block has a row, a thread 16 of its columns, W at a time; they stay in registers between the two uses.
constexpr int kColumns = 16;
constexpr int kMaxHidden = 1024 * kColumns;
constexpr int kFewRows = 64;
unsigned row_threads(int64_t hidden) { return unsigned((hidden + kColumns * 32 - 1) / (kColumns * 32) * 32); }

// Row by block. x (and add) are read once; the sum is rounded to T before it is normalised, as the stored
// stream is. kFew: too few rows for other blocks to hide a wait, so all loads are on their way before the
// first store.
template <class T, int W, bool kFew>
__global__ void __launch_bounds__(1024) rmsnorm_fwd_kernel(const __grid_constant__ RmsNormFwd<T> a) {
  constexpr int kPacks = kColumns / W;
  __shared__ float shared[32];
  allow_next();
  if (kFew && !a.y.empty()) {
    for (int c = threadIdx.x * 32; c < a.x.cols; c += blockDim.x * 32) prefetch_l2(a.gain + c);
  }
  await_previous();
  const int64_t row = blockIdx.x;
  const int hidden = int(a.x.cols);
  Vec<W> x[kPacks], ahead_add[kFew ? kPacks : 1], ahead_gain[kFew ? kPacks : 1];
  float square = 0;
  if constexpr (kFew) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (p * blockDim.x + threadIdx.x) * W;
      if (c >= hidden) continue;
      x[p] = load<W>(a.x.row(row) + c);
      if (!a.add.empty()) ahead_add[p] = load<W>(a.add.row(row) + c);
      if (!a.y.empty()) ahead_gain[p] = load<W>(a.gain + c);
    }
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int c = (p * blockDim.x + threadIdx.x) * W;
    if (c >= hidden) continue;
    if constexpr (!kFew) x[p] = load<W>(a.x.row(row) + c);
    if (!a.add.empty()) {
      const Vec<W> add = kFew ? ahead_add[kFew ? p : 0] : load<W>(a.add.row(row) + c);
#pragma unroll
      for (int i = 0; i < W; ++i) x[p][i] = rounded<T>(x[p][i] + add[i]);
      store<W>(a.sum.row(row) + c, x[p]);
    }
    if (a.capture != nullptr) store<W>(a.capture + row * hidden + c, x[p]);
#pragma unroll
    for (int i = 0; i < W; ++i) square += x[p][i] * x[p][i];
  }
  if (a.y.empty()) return;
  const float inv = rsqrtf(block_sum(square, shared) / hidden + a.eps);
  if (threadIdx.x == 0 && a.inv_rms != nullptr) a.inv_rms[row] = inv;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int c = (p * blockDim.x + threadIdx.x) * W;
    if (c >= hidden) continue;
    const Vec<W> gain = kFew ? ahead_gain[kFew ? p : 0] : load<W>(a.gain + c);
#pragma unroll
    for (int i = 0; i < W; ++i)
      x[p][i] = a.centred ? (1 + gain[i]) * (x[p][i] * inv) : gain[i] * rounded<T>(x[p][i] * inv);
    store<W>(a.y.row(row) + c, x[p]);
  }
}

// A block walks over rows block, block + grid, ...; dy and residual are read once, x a second time
// from L1. Its part of dgain grows in
// registers and goes to scratch[block][H]; add_column_sums adds the parts.
template <class T, int W>
__global__ void __launch_bounds__(1024) rmsnorm_bwd_kernel(const __grid_constant__ RmsNormBwd<T> a) {
  constexpr int kPacks = kColumns / W;
  __shared__ float shared[2][32];
  const int hidden = int(a.x.cols);
  Vec<W> dgain[kPacks] = {};
  int turn = 0;
  for (int64_t row = blockIdx.x; row < a.x.rows; row += gridDim.x, turn ^= 1) {
    const float inv = a.inv_rms[row];
    Vec<W> u[kPacks];
    float dot = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (p * blockDim.x + threadIdx.x) * W;
      if (c >= hidden) continue;
      const Vec<W> x = load<W>(a.x.row(row) + c);
      u[p] = load<W>(a.dy.row(row) + c);
      const Vec<W> gain = load<W>(a.gain + c);
#pragma unroll
      for (int i = 0; i < W; ++i) {
        dgain[p][i] += u[p][i] * (x[i] * inv);
        u[p][i] *= gain[i];
        dot += u[p][i] * (x[i] * inv);
      }
    }
    if (a.dx.empty()) continue;  // the same for all threads
    const float mean = block_sum(dot, shared[turn]) / hidden;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (p * blockDim.x + threadIdx.x) * W;
      if (c >= hidden) continue;
      const Vec<W> x = load<W>(a.x.row(row) + c);
      Vec<W> dx = a.residual.empty() ? Vec<W>{} : load<W>(a.residual.row(row) + c);
#pragma unroll
      for (int i = 0; i < W; ++i) dx[i] += inv * (u[p][i] - x[i] * inv * mean);
      store<W>(a.dx.row(row) + c, dx);
    }
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int c = (p * blockDim.x + threadIdx.x) * W;
    if (c < hidden) store<W>(a.scratch + blockIdx.x * int64_t(hidden) + c, dgain[p]);
  }
}

}  // namespace

template <class T> void rmsnorm_fwd_cuda(const RmsNormFwd<T>& a, CudaStream stream) {
  const int64_t rows = a.x.rows, hidden = a.x.cols;
  require(a.y.empty() || (a.y.rows == rows && a.y.cols == hidden), "rmsnorm_fwd: y must have the shape of x");
  require(a.add.empty() == a.sum.empty(), "rmsnorm_fwd: add and sum come together");
  require(a.add.empty() ||
              (a.add.rows == rows && a.add.cols == hidden && a.sum.rows == rows && a.sum.cols == hidden),
          "rmsnorm_fwd: add and sum must have the shape of x");
  require(hidden >= 1 && hidden <= kMaxHidden, "rmsnorm_fwd: a row has 1 to 16384 columns");
  if (rows == 0) return;
  constexpr int kW = kWide<T>;
  const bool wide = all_fit<kW>(a.x, a.add, a.sum, a.y, a.gain, a.capture);
  const auto kernel = !wide              ? rmsnorm_fwd_kernel<T, 1, false>
                      : rows <= kFewRows ? rmsnorm_fwd_kernel<T, kW, true>
                                         : rmsnorm_fwd_kernel<T, kW, false>;
  launch_early(kernel, unsigned(rows), row_threads(hidden), 0, stream, a);
}

template <class T> void rmsnorm_bwd_cuda(const RmsNormBwd<T>& a, CudaStream stream) {
  const int64_t rows = a.x.rows, hidden = a.x.cols;
  require(a.dy.rows == rows && a.dy.cols == hidden, "rmsnorm_bwd: dy must have the shape of x");
  require(a.dx.empty() || (a.dx.rows == rows && a.dx.cols == hidden),
          "rmsnorm_bwd: dx must have the shape of x");
  require(a.residual.empty() || (a.residual.rows == rows && a.residual.cols == hidden),
          "rmsnorm_bwd: residual must have the shape of x");
  require(hidden >= 1 && hidden <= kMaxHidden, "rmsnorm_bwd: a row has 1 to 16384 columns");
  if (rows == 0) return;
  constexpr int kW = kWide<T>;
  const bool wide = all_fit<kW>(a.x, a.dy, a.residual, a.dx, a.gain, a.scratch);
  const auto kernel = wide ? rmsnorm_bwd_kernel<T, kW> : rmsnorm_bwd_kernel<T, 1>;
  const int parts = gain_parts(rows);
  kernel<<<parts, row_threads(hidden), 0, stream>>>(a);
  check(cudaGetLastError());
  add_column_sums(a.scratch, parts, hidden, a.dgain, stream);
}

template void rmsnorm_fwd_cuda(const RmsNormFwd<float>&, CudaStream);
template void rmsnorm_fwd_cuda(const RmsNormFwd<Bf16>&, CudaStream);
template void rmsnorm_bwd_cuda(const RmsNormBwd<float>&, CudaStream);
template void rmsnorm_bwd_cuda(const RmsNormBwd<Bf16>&, CudaStream);

}  // namespace slip
