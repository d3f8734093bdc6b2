// Gates on what a mixer gives, before its output projection (target-models.md 6.3, 6.5).
//   attention:        y = x * sigmoid(gate), the sigmoid rounded to the storage type first
//   gated delta net:  y = gain * x / sqrt(mean over the head of x^2 + eps) * act(gate), all in fp32, one
//                     rounding; act is SiLU or sigmoid
#pragma once
#include "device/queue.hpp"
#include "device/view.hpp"

namespace slip {

template <class T> struct OutputGateFwd {
  View2<const T> x, gate;  // (rows, cols)
  View2<T> y;              // (rows, cols), may alias x
};
template <class T> void output_gate_fwd_cpu(const OutputGateFwd<T>&);
template <class T> void output_gate_fwd_cuda(const OutputGateFwd<T>&, CudaStream);
template <class T> void output_gate_fwd(const OutputGateFwd<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { output_gate_fwd_cpu(a); }, [&](auto s) { output_gate_fwd_cuda(a, s); });
}

template <class T> struct GatedNormFwd {
  View2<const T> x, gate;  // (rows, heads*head_dim)
  int heads, head_dim;     // head_dim at most 256
  const float* gain;       // (head_dim), the same for every head
  float eps;
  bool sigmoid;  // false: SiLU
  View2<T> y;    // (rows, heads*head_dim), may alias x
};
template <class T> void gated_norm_fwd_cpu(const GatedNormFwd<T>&);
template <class T> void gated_norm_fwd_cuda(const GatedNormFwd<T>&, CudaStream);
template <class T> void gated_norm_fwd(const GatedNormFwd<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { gated_norm_fwd_cpu(a); }, [&](auto s) { gated_norm_fwd_cuda(a, s); });
}

}  // namespace slip
