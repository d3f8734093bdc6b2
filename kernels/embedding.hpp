// Row gathers: token embeddings, and the rows of a matrix that a list names.
#pragma once
#include "device/queue.hpp"
#include "device/view.hpp"

namespace slip {

template <class T> struct GatherRows {
  View2<const T> table;  // (V, H)
  const int* index;      // (out.rows), each in [0, V)
  View2<T> out;          // (n, H)
};
template <class T> void gather_rows_cpu(const GatherRows<T>&);
template <class T> void gather_rows_cuda(const GatherRows<T>&, CudaStream);
template <class T> void gather_rows(const GatherRows<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { gather_rows_cpu(a); }, [&](auto s) { gather_rows_cuda(a, s); });
}

}  // namespace slip
