// RMSNorm over the rows of a matrix, as Llama and Qwen3 define it: y = g * rn(x / sqrt(mean(x^2) + eps)),
// where rn rounds to the storage type before the gain is applied (target-model convention; invisible in
// fp32). Qwen3.5's norms are zero-centred: y = rn(x / sqrt(...) * (1 + g)), one rounding at the end.
#pragma once
#include "core/bf16.hpp"
#include "device/queue.hpp"
#include "device/view.hpp"

namespace slip {

template <class T> struct RmsNormFwd {
  View2<const T> x;      // (rows, H)
  View2<const T> add;    // (rows, H) or empty: normalises x + add
  View2<T> sum;          // (rows, H): where x + add goes, may alias x; empty when `add` is
  const T* gain;         // (H)
  float eps;             // inside the root
  View2<T> y;            // (rows, H); empty: only the sum, or what is captured, is wanted
  Acc<T>* inv_rms;       // (rows) kept for the backward pass, or null
  bool centred = false;  // zero-centred gain
  Bf16* capture =
      nullptr;  // (rows, H) contiguous, or null: what is normalised, as bf16 (a tap of the target)
};
template <class T> void rmsnorm_fwd_cpu(const RmsNormFwd<T>&);
template <class T> void rmsnorm_fwd_cuda(const RmsNormFwd<T>&, CudaStream);
template <class T> void rmsnorm_fwd(const RmsNormFwd<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { rmsnorm_fwd_cpu(a); }, [&](auto s) { rmsnorm_fwd_cuda(a, s); });
}

// With n = x * r, r = inv_rms, u = dy * g:  dx = r * (u - n * mean(u * n)) [+ residual],  dgain += sum_rows
// dy * n.
template <class T> struct RmsNormBwd {
  View2<const T> x;         // (rows, H) the input of the forward pass (the sum, where there was one)
  const T* gain;            // (H)
  const Acc<T>* inv_rms;    // (rows)
  View2<const T> dy;        // (rows, H)
  View2<const T> residual;  // (rows, H) gradient that reaches x past the norm, or empty
  View2<T> dx;              // (rows, H), may alias residual or dy; empty when nobody reads it
  Acc<T>* dgain;            // (H), added to
  Acc<T>* scratch;          // rmsnorm_bwd_scratch(rows, H) elements; the CPU needs none
};
int64_t rmsnorm_bwd_scratch(int64_t rows, int64_t hidden, Device);  // elements of Acc<T>
template <class T> void rmsnorm_bwd_cpu(const RmsNormBwd<T>&);
template <class T> void rmsnorm_bwd_cuda(const RmsNormBwd<T>&, CudaStream);
template <class T> void rmsnorm_bwd(const RmsNormBwd<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { rmsnorm_bwd_cpu(a); }, [&](auto s) { rmsnorm_bwd_cuda(a, s); });
}

}  // namespace slip
