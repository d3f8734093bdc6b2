// SwiGLU: act = silu(gate) * up, silu(z) = z / (1 + exp(-z)), evaluated in fp32.
#pragma once
#include "device/queue.hpp"
#include "device/view.hpp"

namespace slip {

template <class T> struct SwigluFwd {
  View2<const T> gate_up;  // (rows, 2*I): gate columns, then up columns
  View2<T> act;            // (rows, I)
};
template <class T> void swiglu_fwd_cpu(const SwigluFwd<T>&);
template <class T> void swiglu_fwd_cuda(const SwigluFwd<T>&, CudaStream);
template <class T> void swiglu_fwd(const SwigluFwd<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { swiglu_fwd_cpu(a); }, [&](auto s) { swiglu_fwd_cuda(a, s); });
}

template <class T> struct SwigluBwd {
  View2<const T> gate_up;  // (rows, 2*I)
  View2<const T> dact;     // (rows, I)
  View2<T> dgate_up;       // (rows, 2*I), may alias gate_up
  View2<T> act;  // (rows, I) what the forward pass wrote, to the bit; may alias dact; empty: not wanted
};
template <class T> void swiglu_bwd_cpu(const SwigluBwd<T>&);
template <class T> void swiglu_bwd_cuda(const SwigluBwd<T>&, CudaStream);
template <class T> void swiglu_bwd(const SwigluBwd<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { swiglu_bwd_cpu(a); }, [&](auto s) { swiglu_bwd_cuda(a, s); });
}

}  // namespace slip
