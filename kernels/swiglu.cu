#include <cuda_runtime.h>

#include "device/cuda.hpp"
#include "kernels/device/dependent.cuh"
#include "kernels/device/swiglu.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/swiglu.hpp"

namespace slip {
namespace {

// A thread has W columns of a row of act; everything is read and written once.
template <class T, int W> __global__ void swiglu_fwd_kernel(const __grid_constant__ SwigluFwd<T> a) {
  allow_next();
  await_previous();
  const auto [row, c] = row_col<W>(a.act.cols);
  if (c >= a.act.cols) return;
  const Vec<W> gate = load<W>(a.gate_up.row(row) + c);
  Vec<W> act = load<W>(a.gate_up.row(row) + a.act.cols + c);
#pragma unroll
  for (int i = 0; i < W; ++i) act[i] = activation(gate[i], sigmoid(gate[i]), act[i]);
  store<W>(a.act.row(row) + c, act);
}

// dgate = dact * up * s * (1 + gate * (1 - s)), dup = dact * gate * s, s = sigmoid(gate). A thread reads its
// gates, ups and dacts before it writes what may take their places.
template <class T, int W> __global__ void swiglu_bwd_kernel(const __grid_constant__ SwigluBwd<T> a) {
  const int64_t width = a.dact.cols;
  const auto [row, c] = row_col<W>(width);
  if (c >= width) return;
  Vec<W> gate = load<W>(a.gate_up.row(row) + c), up = load<W>(a.gate_up.row(row) + width + c);
  const Vec<W> dact = load<W>(a.dact.row(row) + c);
  Vec<W> act;
#pragma unroll
  for (int i = 0; i < W; ++i) {
    const float z = gate[i], s = sigmoid(z);
    act[i] = activation(z, s, up[i]);
    gate[i] = dact[i] * up[i] * s * (1 + z * (1 - s));
    up[i] = dact[i] * z * s;
  }
  store<W>(a.dgate_up.row(row) + c, gate);
  store<W>(a.dgate_up.row(row) + width + c, up);
  if (!a.act.empty()) store<W>(a.act.row(row) + c, act);
}

// Both halves of a (rows, 2*I) matrix can be read W at a time.
template <int W, class T> bool halves_fit(const View2<T>& v) { return fits<W>(v) && v.cols / 2 % W == 0; }

}  // namespace

template <class T> void swiglu_fwd_cuda(const SwigluFwd<T>& a, CudaStream stream) {
  require(a.gate_up.cols == 2 * a.act.cols && a.gate_up.rows == a.act.rows,
          "swiglu_fwd: gate_up must be (rows, 2*I)");
  if (a.act.rows == 0 || a.act.cols == 0) return;
  constexpr int kW = kWide<T>;
  const bool wide = halves_fit<kW>(a.gate_up) && fits<kW>(a.act);
  const RowGrid grid = row_grid(a.act.rows, a.act.cols / (wide ? kW : 1));
  const auto kernel = wide ? swiglu_fwd_kernel<T, kW> : swiglu_fwd_kernel<T, 1>;
  launch_early(kernel, grid.blocks, grid.threads, 0, stream, a);
}

template <class T> void swiglu_bwd_cuda(const SwigluBwd<T>& a, CudaStream stream) {
  require(a.gate_up.cols == 2 * a.dact.cols && a.gate_up.rows == a.dact.rows,
          "swiglu_bwd: gate_up must be (rows, 2*I)");
  require(a.dgate_up.cols == a.gate_up.cols && a.dgate_up.rows == a.dact.rows,
          "swiglu_bwd: dgate_up must be (rows, 2*I)");
  require(a.act.empty() || (a.act.cols == a.dact.cols && a.act.rows == a.dact.rows),
          "swiglu_bwd: act must be (rows, I)");
  if (a.dact.rows == 0 || a.dact.cols == 0) return;
  constexpr int kW = kWide<T>;
  const bool wide =
      halves_fit<kW>(a.gate_up) && halves_fit<kW>(a.dgate_up) && fits<kW>(a.dact) && fits<kW>(a.act);
  const RowGrid grid = row_grid(a.dact.rows, a.dact.cols / (wide ? kW : 1));
  const auto kernel = wide ? swiglu_bwd_kernel<T, kW> : swiglu_bwd_kernel<T, 1>;
  kernel<<<grid.blocks, grid.threads, 0, stream>>>(a);
  check(cudaGetLastError());
}

template void swiglu_fwd_cuda(const SwigluFwd<float>&, CudaStream);
template void swiglu_fwd_cuda(const SwigluFwd<Bf16>&, CudaStream);
template void swiglu_bwd_cuda(const SwigluBwd<float>&, CudaStream);
template void swiglu_bwd_cuda(const SwigluBwd<Bf16>&, CudaStream);

}  // namespace slip
