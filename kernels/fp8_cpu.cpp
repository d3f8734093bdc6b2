#include "kernels/fp8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "kernels/eigen_maps.hpp"

namespace slip {
namespace {

template <class T> float value(const View2<const T>& x, int64_t r, int64_t c) {
  return static_cast<float>(x.at(r, c));
}
uint32_t magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }

template <class T> RowMatrix<T> decoded(const View2<E4m3>& q) {
  RowMatrix<T> out(q.rows, q.cols);
  for (int64_t r = 0; r < q.rows; ++r) {
    for (int64_t k = 0; k < q.cols; ++k) out(r, k) = static_cast<T>(to_float(q.at(r, k)));
  }
  return out;
}

}  // namespace

std::string no_fp8(const std::string& gpu, CudaCapability c) {
  if (c.major == 9) return "";
  return fmt::format("fp8: its products, with a scale a row, run on sm_90; {} is sm_{}{}: use bf16", gpu,
                     c.major, c.minor);
}

template <class T> void quantize_fp8_cpu(const QuantizeFp8<T>& a) {
  const int64_t rows = a.x.rows, cols = a.x.cols;
  require(a.rows.empty() || (a.rows.q.rows == rows && a.rows.q.cols == cols),
          "quantize_fp8: rows must have the shape of x");
  require(a.columns.empty() ||
              (a.columns.q.rows == cols && a.columns.q.cols >= rows && a.columns.q.cols <= fp8_padded(rows)),
          "quantize_fp8: columns must have the shape of x transposed, its rows at most 15 longer");
  uint32_t* const of_row = a.largest;
  uint32_t* const of_column = a.largest + rows;
  std::fill_n(a.largest, rows + cols, 0u);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const uint32_t m = magnitude(value(a.x, r, c));
      of_row[r] = std::max(of_row[r], m);
      of_column[c] = std::max(of_column[c], m);
    }
  }
  for (int64_t r = 0; !a.rows.empty() && r < rows; ++r) {
    const Fp8Scale s = fp8_scale(of_row[r]);
    a.rows.scale[r] = s.scale;
    for (int64_t c = 0; c < cols; ++c) a.rows.q.at(r, c) = to_e4m3(value(a.x, r, c) * s.inverse);
  }
  for (int64_t c = 0; !a.columns.empty() && c < cols; ++c) {
    const Fp8Scale s = fp8_scale(of_column[c]);
    a.columns.scale[c] = s.scale;
    for (int64_t r = 0; r < a.columns.q.cols; ++r) {
      a.columns.q.at(c, r) = to_e4m3(r < rows ? value(a.x, r, c) * s.inverse : 0.0f);
    }
  }
}

template <class T, class Out> void fp8_matmul_cpu(const Fp8Matmul<T, Out>& a) {
  require(a.c.rows == a.a.q.rows && a.c.cols == a.b.q.rows && a.a.q.cols == a.b.q.cols,
          "fp8_matmul: shapes do not fit");
  const RowMatrix<T> left = decoded<T>(a.a.q), right = decoded<T>(a.b.q);
  RowMatrix<T> product(a.c.rows, a.c.cols);
  product.noalias() = left * right.transpose();
  for (int64_t r = 0; r < a.c.rows; ++r) {
    for (int64_t c = 0; c < a.c.cols; ++c) {
      const T x = product(r, c) * static_cast<T>(a.a.scale[r]) * static_cast<T>(a.b.scale[c]);
      a.c.at(r, c) = static_cast<Out>(a.accumulate ? a.c.at(r, c) + x : x);
    }
  }
}

template void quantize_fp8_cpu(const QuantizeFp8<float>&);
template void quantize_fp8_cpu(const QuantizeFp8<double>&);
template void fp8_matmul_cpu(const Fp8Matmul<float, float>&);
template void fp8_matmul_cpu(const Fp8Matmul<double, double>&);

}  // namespace slip
