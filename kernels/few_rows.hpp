// The product C = A B^T of at most 16 rows, bf16: what a decode call is made of. B, the weight, is read once;
// that is all the time it needs. matmul_cuda calls it where it fits; cuBLASLt takes everything else.
#pragma once
#include "kernels/matmul.hpp"

namespace slip {

inline constexpr int kFewRows = 16;

template <class Out> bool few_rows_takes(const Matmul<Bf16, Out>&);

// What it needs beside its arguments; kept by the caller, free again once the product has run.
struct FewRowsScratch {
  float* parts;        // few_rows_parts elements
  unsigned* tickets;   // kFewRowsBlocks, zero before the first product; every product leaves zeros
  int64_t part_count;  // elements that there are
};
int64_t few_rows_parts(int64_t n, int64_t k);  // 0 where K is not split

// act = swiglu(A B^T) where B's rows are gates, then ups: the same bits as product and swiglu_fwd one after
// the other, without their intermediate. False, and nothing queued, where there is no such kernel: the caller
// then does both.
template <class T> struct SwigluProduct {
  View2<const T> a, b;     // (rows, K), (2*I, K)
  View2<T> act;            // (rows, I)
  bool b_settled = false;  // matmul.hpp
};
bool few_rows_swiglu_cuda(const SwigluProduct<Bf16>&, CudaStream);
template <class T> bool few_rows_swiglu(const SwigluProduct<T>& a, const Queue& q) {
  if constexpr (__is_same(T, Bf16) && SLIP_HAVE_CUDA) return !q.on_cpu() && few_rows_swiglu_cuda(a, q.stream);
  return false;
}

template <class Out> void few_rows_matmul(const Matmul<Bf16, Out>&, const FewRowsScratch&, CudaStream);

}  // namespace slip
