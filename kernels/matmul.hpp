// Matrix products. Accumulation is fp32 (double for double); one rounding at the store.
#pragma once
#include "device/queue.hpp"
#include "device/view.hpp"

namespace slip {

enum class Product {
  nt,  // C = A B^T : (M,K) (N,K) -> (M,N), a linear layer's forward with B = its weight [out, in]
  nn,  // C = A B   : (M,K) (K,N) -> (M,N), the gradient of its input
  tn,  // C = A^T B : (K,M) (K,N) -> (M,N), the gradient of its weight
};

template <class T, class Out = T> struct Matmul {
  Product form;
  View2<const T> a, b;
  View2<Out> c;
  bool accumulate = false;  // C += instead of C =
  // The kernel queued before does not write b, as none writes a frozen weight: a GPU may then read b ahead.
  bool b_settled = false;
};

template <class T, class Out> void matmul_cpu(const Matmul<T, Out>&);  // Eigen
template <class T, class Out> void matmul_ref(const Matmul<T, Out>&);  // loops in double, for tests
template <class T, class Out> void matmul_cuda(const Matmul<T, Out>&, const Queue&);  // cuBLASLt
template <class T, class Out> void matmul(const Matmul<T, Out>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { matmul_cpu(a); }, [&](auto) { matmul_cuda(a, q); });
}

// Multiply-adds count two.
template <class T, class Out> double matmul_flops(const Matmul<T, Out>& a) {
  const int64_t k = a.form == Product::tn ? a.a.rows : a.a.cols;
  return 2.0 * static_cast<double>(a.c.rows) * static_cast<double>(a.c.cols) * static_cast<double>(k);
}

}  // namespace slip
