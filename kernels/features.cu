#include <cuda_runtime.h>

#include "device/cuda.hpp"
#include "kernels/device/dependent.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/features.hpp"

namespace slip {
namespace {

// fp64 has no Vec of its own: it is cast one element at a time, in tests only.
template <class From, class To> __device__ void cast_element(const From& from, To& to) {
  if constexpr (sizeof(To) == 2) {
    to.bits = static_cast<uint16_t>(pack_bf16(static_cast<float>(to_float(from)), 0));
  } else {
    to = static_cast<To>(to_float(from));
  }
}

// A thread has W columns of a row.
template <class From, class To, int W> __global__ void cast_kernel(const __grid_constant__ Cast<From, To> a) {
  allow_next();
  await_previous();
  const auto [row, c] = row_col<W>(a.from.cols);
  if (c >= a.from.cols) return;
  if constexpr (W == 1) {
    cast_element(a.from.at(row, c), a.to.at(row, c));
  } else {
    store<W>(a.to.row(row) + c, load<W>(a.from.row(row) + c));
  }
}

// A thread has W columns of x; the tap they belong to follows from the column.
template <class T, int W>
__global__ void join_taps_kernel(const __grid_constant__ JoinTaps<T> a, int64_t hidden) {
  allow_next();
  await_previous();
  const auto [row, c] = row_col<W>(a.x.cols);
  if (c >= a.x.cols) return;
  const unsigned tap = unsigned(c) / unsigned(hidden);
  const Vec<W> x = load<W>(a.slot + (tap * a.slot_tokens + row) * hidden + (c - tap * hidden));
  bool bad = false;
#pragma unroll
  for (int i = 0; i < W; ++i) bad |= !(fabsf(x[i]) <= 3.4e38f);  // the largest bf16 is 3.39e38
  store<W>(a.x.row(row) + c, x);
  if (bad) *a.non_finite = 1;  // all that write, write the same
}

}  // namespace

template <class From, class To> void cast_cuda(const Cast<From, To>& a, CudaStream stream) {
  require(a.from.rows == a.to.rows && a.from.cols == a.to.cols, "cast: shapes differ");
  if (a.from.rows == 0 || a.from.cols == 0) return;
  constexpr bool kDouble = sizeof(From) == 8 || sizeof(To) == 8;
  constexpr int kW = kDouble ? 1 : sizeof(From) == 2 || sizeof(To) == 2 ? 8 : 4;
  const bool wide = all_fit<kW>(a.from, a.to);
  const RowGrid grid = row_grid(a.from.rows, a.from.cols / (wide ? kW : 1));
  const auto kernel = wide ? cast_kernel<From, To, kW> : cast_kernel<From, To, 1>;
  launch_early(kernel, grid.blocks, grid.threads, 0, stream, a);
}

template <class T> void join_taps_cuda(const JoinTaps<T>& a, CudaStream stream) {
  require(a.taps > 0 && a.x.cols % a.taps == 0 && a.x.rows <= a.slot_tokens, "join_taps: shapes do not fit");
  if (a.x.rows == 0 || a.x.cols == 0) return;
  const int64_t hidden = a.x.cols / a.taps;
  const bool wide = fits<8>(a.x) && fits<8>(a.slot) && hidden % 8 == 0;
  const RowGrid grid = row_grid(a.x.rows, a.x.cols / (wide ? 8 : 1));
  const auto kernel = wide ? join_taps_kernel<T, 8> : join_taps_kernel<T, 1>;
  launch_early(kernel, grid.blocks, grid.threads, 0, stream, a, hidden);
}

template void cast_cuda(const Cast<float, float>&, CudaStream);
template void cast_cuda(const Cast<float, Bf16>&, CudaStream);
template void cast_cuda(const Cast<float, double>&, CudaStream);
template void cast_cuda(const Cast<Bf16, float>&, CudaStream);
template void cast_cuda(const Cast<Bf16, Bf16>&, CudaStream);
template void cast_cuda(const Cast<Bf16, double>&, CudaStream);
template void cast_cuda(const Cast<double, float>&, CudaStream);
template void cast_cuda(const Cast<double, Bf16>&, CudaStream);
template void cast_cuda(const Cast<double, double>&, CudaStream);
template void join_taps_cuda(const JoinTaps<float>&, CudaStream);
template void join_taps_cuda(const JoinTaps<Bf16>&, CudaStream);

}  // namespace slip
