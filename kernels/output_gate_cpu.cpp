#include <cmath>

#include "kernels/eigen_maps.hpp"
#include "kernels/output_gate.hpp"

namespace slip {

template <class T> void output_gate_fwd_cpu(const OutputGateFwd<T>& a) {
  const int64_t cols = a.x.cols;
  require(a.gate.rows == a.x.rows && a.gate.cols == cols && a.y.rows == a.x.rows && a.y.cols == cols,
          "output_gate_fwd: x, gate and y must have one shape");
  for (int64_t r = 0; r < a.x.rows; ++r)
    array(a.y.row(r), cols) = array(a.x.row(r), cols) / (T(1) + (-array(a.gate.row(r), cols)).exp());
}

template <class T> void gated_norm_fwd_cpu(const GatedNormFwd<T>& a) {
  const int64_t d = a.head_dim;
  require(a.x.cols == a.heads * d && a.gate.cols == a.x.cols && a.y.cols == a.x.cols &&
              a.gate.rows == a.x.rows && a.y.rows == a.x.rows,
          "gated_norm_fwd: x, gate and y must be rows of heads");
  const auto gain = array(a.gain, d).template cast<T>();
  for (int64_t r = 0; r < a.x.rows; ++r) {
    for (int64_t c = 0; c < a.x.cols; c += d) {
      const auto x = array(a.x.row(r) + c, d);
      const auto z = array(a.gate.row(r) + c, d);
      const T inv = T(1) / std::sqrt(x.square().mean() + static_cast<T>(a.eps));
      auto y = array(a.y.row(r) + c, d);
      y = gain * x * inv / (T(1) + (-z).exp());
      if (!a.sigmoid) y *= z;
    }
  }
}

template void output_gate_fwd_cpu(const OutputGateFwd<float>&);
template void output_gate_fwd_cpu(const OutputGateFwd<double>&);
template void gated_norm_fwd_cpu(const GatedNormFwd<float>&);
template void gated_norm_fwd_cpu(const GatedNormFwd<double>&);

}  // namespace slip
