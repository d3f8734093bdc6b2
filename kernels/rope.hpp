// Per-head RMSNorm (qk-norm) and rotary position embedding in one pass over query or key rows.
// Half-split layout (rotate_half): out_i = x_i cos - x_{i+R/2} sin, out_{i+R/2} = x_{i+R/2} cos + x_i sin, i
// < R/2, where R = 2 * table.cols <= head_dim components rotate and the rest pass. Tables are fp32 on every
// back end.
#pragma once
#include "device/queue.hpp"
#include "device/view.hpp"

namespace slip {

struct RopeTable {
  View2<const float> cos, sin;  // (positions, R/2) each
};

template <class T> struct HeadRopeFwd {
  View2<const T> x;  // (rows, (heads+more_heads)*head_dim); rows may be a column slice of a wider matrix
  int heads, head_dim;
  const T* gain;  // (head_dim), or null: no norm (Llama)
  float eps;
  RopeTable table;
  const int* position;   // (rows), each < table rows
  View2<T> y;            // as x; may alias it when no backward pass follows
  Acc<T>* inv_rms;       // (rows*(heads+more_heads)) kept for the backward pass, or null
  bool centred = false;  // zero-centred gain, as in rmsnorm.hpp
  // Columns after those of `heads`: heads with a gain of their own, as keys are beside their queries.
  int more_heads = 0;
  const T* more_gain = nullptr;  // null with `gain`
};
template <class T> void head_rope_fwd_cpu(const HeadRopeFwd<T>&);
template <class T> void head_rope_fwd_cuda(const HeadRopeFwd<T>&, CudaStream);
template <class T> void head_rope_fwd(const HeadRopeFwd<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { head_rope_fwd_cpu(a); }, [&](auto s) { head_rope_fwd_cuda(a, s); });
}

// Rotates dy back, then the norm's backward (rmsnorm.hpp). G is the type of the incoming gradient.
template <class T, class G = T> struct HeadRopeBwd {
  View2<const T> x;  // (rows, heads*head_dim) the input of the forward pass
  int heads, head_dim;
  const T* gain;          // (head_dim); never null: only the drafter trains, and it has qk-norm
  const Acc<T>* inv_rms;  // (rows*heads)
  RopeTable table;
  const int* position;  // (rows)
  View2<const G> dy;    // (rows, heads*head_dim)
  View2<T> dx;          // (rows, heads*head_dim); may be x (whose content is then lost), or dy when G is T
  Acc<T>* dgain;        // (head_dim), added to
  Acc<T>* scratch;      // head_rope_bwd_scratch(...) elements; the CPU needs none
};
int64_t head_rope_bwd_scratch(int64_t rows, int heads, int head_dim, Device);  // elements of Acc<T>
template <class T, class G> void head_rope_bwd_cpu(const HeadRopeBwd<T, G>&);
template <class T, class G> void head_rope_bwd_cuda(const HeadRopeBwd<T, G>&, CudaStream);
template <class T, class G> void head_rope_bwd(const HeadRopeBwd<T, G>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { head_rope_bwd_cpu(a); }, [&](auto s) { head_rope_bwd_cuda(a, s); });
}

}  // namespace slip
