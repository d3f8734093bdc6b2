#include <cuda_runtime.h>

#include "device/cuda.hpp"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/output_gate.hpp"

namespace slip {
namespace {

// In bf16 the approximations are far below the rounding of the result.
template <class T> __device__ float sigmoid(float z) {
  if constexpr (sizeof(T) == 2) return __fdividef(1, 1 + __expf(-z));
  return 1 / (1 + expf(-z));
}

// A thread has W columns of a row.
template <class T, int W> __global__ void output_gate_kernel(const __grid_constant__ OutputGateFwd<T> a) {
  const auto [row, c] = row_col<W>(a.x.cols);
  if (c >= a.x.cols) return;
  Vec<W> x = load<W>(a.x.row(row) + c);
  const Vec<W> gate = load<W>(a.gate.row(row) + c);
#pragma unroll
  for (int i = 0; i < W; ++i) x[i] *= rounded<T>(sigmoid<T>(gate[i]));
  store<W>(a.y.row(row) + c, x);
}

// A group of `lanes` lanes has a head of a row, a lane kPacks times W of its columns; kItems heads a group,
// all loaded before the first is computed. Items are (row, head), heads fastest.
constexpr int kThreads = 256, kMaxDim = 256;

template <class T, int W, int kPacks, int kItems>
__global__ void __launch_bounds__(kThreads)
    gated_norm_kernel(const __grid_constant__ GatedNormFwd<T> a, int lanes) {
  const int groups = kThreads / lanes, lane = threadIdx.x % lanes, dim = a.head_dim;
  const unsigned first = blockIdx.x * unsigned(groups * kItems) + threadIdx.x / lanes,
                 items = unsigned(a.x.rows) * a.heads;
  Vec<W> x[kItems][kPacks] = {}, z[kItems][kPacks];
#pragma unroll
  for (int e = 0; e < kItems; ++e) {
    const unsigned item = first + e * groups;
    if (item >= items) break;
    const unsigned row = item / a.heads, head = item % a.heads * dim;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (p * lanes + lane) * W;
      if (c >= dim) continue;
      x[e][p] = load<W>(a.x.row(row) + head + c);
      z[e][p] = load<W>(a.gate.row(row) + head + c);
    }
  }
#pragma unroll
  for (int e = 0; e < kItems; ++e) {
    float square = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < W; ++i) square = fmaf(x[e][p][i], x[e][p][i], square);
    }
    const float inv = rsqrtf(group_sum(square, lanes) / dim + a.eps);  // all lanes: no early return above
    const unsigned item = first + e * groups;
    if (item >= items) continue;
    const unsigned row = item / a.heads, head = item % a.heads * dim;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (p * lanes + lane) * W;
      if (c >= dim) continue;
      const Vec<W> gain = load<W>(a.gain + c);
#pragma unroll
      for (int i = 0; i < W; ++i) {
        const float s = sigmoid<T>(z[e][p][i]);
        x[e][p][i] *= gain[i] * inv * (a.sigmoid ? s : z[e][p][i] * s);
      }
      store<W>(a.y.row(row) + head + c, x[e][p]);
    }
  }
}

}  // namespace

template <class T> void output_gate_fwd_cuda(const OutputGateFwd<T>& a, CudaStream stream) {
  const int64_t rows = a.x.rows, cols = a.x.cols;
  require(a.gate.rows == rows && a.gate.cols == cols && a.y.rows == rows && a.y.cols == cols,
          "output_gate_fwd: x, gate and y must have one shape");
  if (rows == 0 || cols == 0) return;
  constexpr int kW = kWide<T>;
  const bool wide = all_fit<kW>(a.x, a.gate, a.y);
  const RowGrid grid = row_grid(rows, cols / (wide ? kW : 1));
  const auto kernel = wide ? output_gate_kernel<T, kW> : output_gate_kernel<T, 1>;
  kernel<<<grid.blocks, grid.threads, 0, stream>>>(a);
  check(cudaGetLastError());
}

template <class T> void gated_norm_fwd_cuda(const GatedNormFwd<T>& a, CudaStream stream) {
  const int64_t rows = a.x.rows, cols = int64_t(a.heads) * a.head_dim;
  require(a.head_dim >= 1 && a.head_dim <= kMaxDim, "gated_norm_fwd: heads of 1 to 256 columns");
  require(
      a.x.cols == cols && a.gate.cols == cols && a.y.cols == cols && a.gate.rows == rows && a.y.rows == rows,
      "gated_norm_fwd: x, gate and y must be rows of heads");
  if (rows == 0 || a.heads == 0) return;
  constexpr int kW = kWide<T>, kItems = 4;
  const int lanes = a.head_dim % kW == 0 ? a.head_dim / kW : 0;
  const bool power = lanes >= 1 && lanes <= 32 && (lanes & (lanes - 1)) == 0;
  const bool wide = power && all_fit<kW>(a.x, a.gate, a.y) && fits<kW>(a.gain);
  const int64_t per_block = wide ? kThreads / lanes * kItems : kThreads / 32;
  const int64_t blocks = (rows * a.heads + per_block - 1) / per_block;
  require(rows * a.heads < (1ll << 31), "gated_norm_fwd: too many heads for one launch");
  const auto kernel = wide ? gated_norm_kernel<T, kW, 1, kItems> : gated_norm_kernel<T, 1, kMaxDim / 32, 1>;
  kernel<<<unsigned(blocks), kThreads, 0, stream>>>(a, wide ? lanes : 32);
  check(cudaGetLastError());
}

template void output_gate_fwd_cuda(const OutputGateFwd<float>&, CudaStream);
template void output_gate_fwd_cuda(const OutputGateFwd<Bf16>&, CudaStream);
template void gated_norm_fwd_cuda(const GatedNormFwd<float>&, CudaStream);
template void gated_norm_fwd_cuda(const GatedNormFwd<Bf16>&, CudaStream);

}  // namespace slip
