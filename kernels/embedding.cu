#include <cuda_runtime.h>

#include "device/cuda.hpp"
#include "kernels/device/dependent.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/embedding.hpp"

namespace slip {
namespace {

// A thread copies W elements of a row: 16 bytes, or one element. Bits are copied, whatever they mean.
template <class T, int W> __global__ void gather_rows_kernel(const __grid_constant__ GatherRows<T> a) {
  allow_next();
  await_previous();
  const auto [row, c] = row_col<W>(a.out.cols);
  if (c >= a.out.cols) return;
  struct alignas(W * sizeof(T)) Bits {
    T v[W];
  };
  *reinterpret_cast<Bits*>(a.out.row(row) + c) =
      *reinterpret_cast<const Bits*>(a.table.row(a.index[row]) + c);
}

}  // namespace

template <class T> void gather_rows_cuda(const GatherRows<T>& a, CudaStream stream) {
  require(a.out.cols == a.table.cols, "gather_rows: out must be as wide as the table");
  if (a.out.rows == 0 || a.out.cols == 0) return;
  constexpr int kW = kWide<T>;
  const bool wide = all_fit<kW>(a.table, a.out);
  const RowGrid grid = row_grid(a.out.rows, a.out.cols / (wide ? kW : 1));
  const auto kernel = wide ? gather_rows_kernel<T, kW> : gather_rows_kernel<T, 1>;
  launch_early(kernel, grid.blocks, grid.threads, 0, stream, a);
}

template void gather_rows_cuda(const GatherRows<float>&, CudaStream);
template void gather_rows_cuda(const GatherRows<Bf16>&, CudaStream);

}  // namespace slip
