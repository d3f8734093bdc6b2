// Products in fp8: operands in e4m3 with one fp32 scale a row, fp32 sums, results in the working type or
// fp32. A Hopper multiplies fp8 only where K, the dimension that is summed over, is the contiguous one of
// both operands. So each matrix has a copy for the products that sum over its columns (`rows`) and a
// transposed one for those that sum over its rows (`columns`), each with scales of its own:
//   y = x W^T: rows of x and of W.  dx = dy W: rows of dy, columns of W.  dW = dy^T x: columns of both.
#pragma once
#include <string>

#include "core/fp8.hpp"
#include "device/queue.hpp"
#include "device/view.hpp"
#include "kernels/cuda_queue.hpp"

namespace slip {

// Value (r, k) is q.at(r, k) * scale[r].
struct Fp8Rows {
  View2<E4m3> q;           // (rows, K)
  float* scale = nullptr;  // (rows)
  SLIP_HD bool empty() const { return q.empty(); }
  Fp8Rows rows_from(int64_t first, int64_t count) const { return {q.rows_from(first, count), scale + first}; }
  Fp8Rows k_from(int64_t first, int64_t count) const { return {q.cols_from(first, count), scale}; }
};

// What a number of tokens is rounded up to where products sum over tokens: cuBLASLt wants 16 bytes.
SLIP_HD inline int64_t fp8_padded(int64_t tokens) { return (tokens + 15) / 16 * 16; }

// scale = largest / 448. Of a row of zeros, and of less than 2^-100, it is that of 2^-100: all is finite. Of
// a row with NaN or infinity, which `largest` shows as the greatest bits, the scale is NaN or infinite, and
// every product with the row is NaN: a bad step is noticed as ever.
struct Fp8Scale {
  float scale, inverse;
};
SLIP_HD inline Fp8Scale fp8_scale(uint32_t largest) {  // bits of |x|
  constexpr uint32_t kLeast = (127 - 100) << 23;
  const float most = std::bit_cast<float>(largest > kLeast ? largest : kLeast);
  return {most / kE4m3Largest, kE4m3Largest / most};
}

// q = to_e4m3(float(x) * inverse), all back ends to the bit.
template <class T> struct QuantizeFp8 {
  View2<const T> x;   // (rows, cols)
  Fp8Rows rows;       // (rows, cols), or empty
  Fp8Rows columns;    // (cols, K), rows <= K <= fp8_padded(rows), the rest zeros; or empty. On CUDA K: by 4
  uint32_t* largest;  // (rows + cols) scratch
};
template <class T> void quantize_fp8_cpu(const QuantizeFp8<T>&);
template <class T> void quantize_fp8_cuda(const QuantizeFp8<T>&, CudaStream);
template <class T> void quantize_fp8(const QuantizeFp8<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { quantize_fp8_cpu(a); }, [&](auto s) { quantize_fp8_cuda(a, s); });
}

// Why a GPU cannot multiply so: cuBLASLt has factors for each row on Hoppers alone. Empty where it can.
std::string no_fp8(const std::string& gpu, CudaCapability);

// C = A B^T, or C += A B^T. On CUDA (sm_90) K, rows of B and strides are multiples of 16.
template <class T, class Out = T> struct Fp8Matmul {
  Fp8Rows a, b;  // (M, K), (N, K)
  View2<Out> c;  // (M, N)
  bool accumulate = false;
  // CUDA: sums stay in the tensor cores' short accumulators (about 14 bits); else they go to fp32 every few
  // steps.
  bool fast = false;
};
template <class T, class Out> void fp8_matmul_cpu(const Fp8Matmul<T, Out>&);                 // sums in T
template <class T, class Out> void fp8_matmul_cuda(const Fp8Matmul<T, Out>&, const Queue&);  // cuBLASLt
template <class T, class Out> void fp8_matmul(const Fp8Matmul<T, Out>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { fp8_matmul_cpu(a); }, [&](auto) { fp8_matmul_cuda(a, q); });
}

}  // namespace slip
