// Quantizing in two passes over x: the largest magnitude of every row and column, then both copies from tiles
// that are turned in shared memory. Maxima do not depend on the order, so atomics on their bits repeat.
#include <cuda_runtime.h>

#include "device/cuda.hpp"
#include "kernels/device/fp8.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/fp8.hpp"

namespace slip {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kW = 8;                                // columns of a thread
constexpr int kMostRows = 128, kMostCols = 32 * kW;  // of a block of largest_kernel
constexpr int kTile = 128;                           // rows and columns of a block of quantize_kernel

// Columns col .. col + 8 of a row; zeros beyond the matrix.
template <bool wide, class T>
__device__ Vec<kW> load_columns(const View2<const T>& x, int64_t row, int64_t col) {
  Vec<kW> v = {};
  if (row >= x.rows || col >= x.cols) return v;
  if constexpr (wide) {
    v = load<kW>(x.row(row) + col);
  } else {
    for (int i = 0; i < kW && col + i < x.cols; ++i) v[i] = to_float(x.at(row, col + i));
  }
  return v;
}

// A block has 256 columns of 128 rows, a warp a row of them at a time. Null: not asked for.
template <class T, bool wide>
__global__ void __launch_bounds__(kThreads)
    largest_kernel(const __grid_constant__ View2<const T> x, uint32_t* of_row, uint32_t* of_column) {
  __shared__ uint32_t parts[kWarps][kMostCols];
  const int64_t col = blockIdx.x * int64_t(kMostCols) + lane_id() * kW,
                first = blockIdx.y * int64_t(kMostRows);
  uint32_t most[kW] = {};
#pragma unroll 4
  for (int i = warp_id(); i < kMostRows; i += kWarps) {
    const Vec<kW> v = load_columns<wide>(x, first + i, col);
    uint32_t row = 0;
#pragma unroll
    for (int k = 0; k < kW; ++k) {
      const uint32_t m = __float_as_uint(v[k]) & 0x7fffffffu;
      most[k] = max(most[k], m), row = max(row, m);
    }
    if (of_row == nullptr) continue;
    row = __reduce_max_sync(~0u, row);
    if (lane_id() == 0 && first + i < x.rows) atomicMax(of_row + first + i, row);
  }
  if (of_column == nullptr) return;
#pragma unroll
  for (int k = 0; k < kW; ++k) parts[warp_id()][lane_id() * kW + k] = most[k];
  __syncthreads();
  uint32_t column = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) column = max(column, parts[w][threadIdx.x]);
  const int64_t c = blockIdx.x * int64_t(kMostCols) + threadIdx.x;
  if (c < x.cols) atomicMax(of_column + c, column);
}

// A block has a tile of 128 x 128; a thread 8 columns of 4 rows, twice. Its bytes go to the row copy at once,
// four rows of a column in a word to `turned`, from where a warp writes 128 bytes of a column. Words change
// places by columns, so that the 32 of a warp lie in 32 banks both times.
template <class T, bool wide>
__global__ void __launch_bounds__(kThreads) quantize_kernel(const __grid_constant__ QuantizeFp8<T> a) {
  __shared__ uint32_t turned[kTile][kTile / 4 + 1];
  __shared__ float inverse[2][kTile];  // of rows, of columns
  const auto place = [](int column, int word) { return word ^ (column >> 5 & 3) * 2; };
  const bool rows = !a.rows.empty(), columns = !a.columns.empty();
  const int64_t row0 = blockIdx.y * int64_t(kTile), col0 = blockIdx.x * int64_t(kTile);
  {
    static_assert(kThreads == 2 * kTile);
    const int of_column = int(threadIdx.x) / kTile, i = int(threadIdx.x) % kTile;
    const int64_t at = (of_column ? col0 : row0) + i;
    const bool inside = (of_column ? columns : rows) && at < (of_column ? a.x.cols : a.x.rows);
    const Fp8Scale s = inside ? fp8_scale(a.largest[of_column ? a.x.rows + at : at]) : Fp8Scale{};
    inverse[of_column][i] = s.inverse;
    if (inside && (of_column ? blockIdx.y : blockIdx.x) == 0)
      (of_column ? a.columns : a.rows).scale[at] = s.scale;
  }
  __syncthreads();
  const int group = threadIdx.x / 16, local = threadIdx.x % 16 * kW;
  const int64_t col = col0 + local;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int word = half * 16 + group;
    const int64_t row = row0 + word * 4;
    Vec<kW> v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = load_columns<wide>(a.x, row + i, col);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!rows || row + i >= a.x.rows || col >= a.x.cols) continue;
      const float s = inverse[0][word * 4 + i];
      const uint2 bytes = make_uint2(e4m3_quad(v[i][0] * s, v[i][1] * s, v[i][2] * s, v[i][3] * s),
                                     e4m3_quad(v[i][4] * s, v[i][5] * s, v[i][6] * s, v[i][7] * s));
      E4m3* const to = a.rows.q.row(row + i) + col;
      if constexpr (wide) {
        *reinterpret_cast<uint2*>(to) = bytes;
      } else {
        for (int k = 0; k < kW && col + k < a.x.cols; ++k)
          to[k].bits = uint8_t((k < 4 ? bytes.x : bytes.y) >> 8 * (k % 4));
      }
    }
    if (!columns) continue;
#pragma unroll
    for (int k = 0; k < kW; ++k) {
      const float s = inverse[1][local + k];
      turned[local + k][place(local + k, word)] =
          e4m3_quad(v[0][k] * s, v[1][k] * s, v[2][k] * s, v[3][k] * s);
    }
  }
  if (!columns) return;
  __syncthreads();
  const int64_t at = row0 + lane_id() * 4;
  if (at >= a.columns.q.cols) return;
  for (int c = warp_id(); c < kTile && col0 + c < a.x.cols; c += kWarps) {
    const bool inside = at + 4 <= a.x.rows;
    uint32_t word = turned[c][place(c, lane_id())];
    if (!inside) {  // zeros, where 0 times the scale of a column with NaN is none
      const int64_t live = max(int64_t(0), a.x.rows - at);
      word &= (1u << 8 * live) - 1;
    }
    *reinterpret_cast<uint32_t*>(a.columns.q.row(col0 + c) + at) = word;
  }
}

unsigned blocks(int64_t count, int each) { return unsigned((count + each - 1) / each); }

}  // namespace

template <class T> void quantize_fp8_cuda(const QuantizeFp8<T>& a, CudaStream stream) {
  const int64_t rows = a.x.rows, cols = a.x.cols;
  require(a.rows.empty() || (a.rows.q.rows == rows && a.rows.q.cols == cols),
          "quantize_fp8: rows must have the shape of x");
  const View2<E4m3>& turned = a.columns.q;
  require(
      a.columns.empty() || (turned.rows == cols && turned.cols >= rows && turned.cols <= fp8_padded(rows)),
      "quantize_fp8: columns must have the shape of x transposed, its rows at most 15 longer");
  require(fits<4>(turned), "quantize_fp8: columns must be aligned to 4 bytes");
  require(blocks(rows, kTile) <= 65535, "quantize_fp8: too many rows for one launch");
  if (rows == 0 || cols == 0) return;
  check(cudaMemsetAsync(a.largest, 0, size_t(rows + cols) * sizeof(uint32_t), stream));
  const bool wide = fits<kW>(a.x) && fits<kW>(a.rows.q);
  const auto largest = wide ? largest_kernel<T, true> : largest_kernel<T, false>;
  largest<<<dim3(blocks(cols, kMostCols), blocks(rows, kMostRows)), kThreads, 0, stream>>>(
      a.x, a.rows.empty() ? nullptr : a.largest, a.columns.empty() ? nullptr : a.largest + rows);
  check(cudaGetLastError());
  const auto quantize = wide ? quantize_kernel<T, true> : quantize_kernel<T, false>;
  quantize<<<dim3(blocks(cols, kTile), blocks(rows, kTile)), kThreads, 0, stream>>>(a);
  check(cudaGetLastError());
}

template void quantize_fp8_cuda(const QuantizeFp8<float>&, CudaStream);
template void quantize_fp8_cuda(const QuantizeFp8<Bf16>&, CudaStream);

}  // namespace slip
