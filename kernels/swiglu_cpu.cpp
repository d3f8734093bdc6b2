#include "kernels/eigen_maps.hpp"
#include "kernels/swiglu.hpp"

namespace slip {

template <class T> void swiglu_fwd_cpu(const SwigluFwd<T>& a) {
  const int64_t width = a.act.cols;
  require(a.gate_up.cols == 2 * width && a.gate_up.rows == a.act.rows,
          "swiglu_fwd: gate_up must be (rows, 2*I)");
  for (int64_t r = 0; r < a.act.rows; ++r) {
    const auto gate = array(a.gate_up.row(r), width);
    const auto up = array(a.gate_up.row(r) + width, width);
    array(a.act.row(r), width) = gate / (T(1) + (-gate).exp()) * up;
  }
}

// With s = sigmoid(gate):  dgate = dact * up * s * (1 + gate * (1 - s)),  dup = dact * gate * s.
template <class T> void swiglu_bwd_cpu(const SwigluBwd<T>& a) {
  const int64_t width = a.dact.cols;
  require(a.gate_up.cols == 2 * width && a.dgate_up.cols == 2 * width,
          "swiglu_bwd: gate_up must be (rows, 2*I)");
  Eigen::Array<T, 1, Eigen::Dynamic> s(width), dgate(width);
  for (int64_t r = 0; r < a.dact.rows; ++r) {
    const auto gate = array(a.gate_up.row(r), width);
    const auto up = array(a.gate_up.row(r) + width, width);
    const auto dact = array(a.dact.row(r), width);
    s = (T(1) + (-gate).exp()).inverse();
    dgate = dact * up * s * (T(1) + gate * (T(1) - s));
    array(a.dgate_up.row(r) + width, width) = dact * gate * s;  // before gate is overwritten where they alias
    array(a.dgate_up.row(r), width) = dgate;
  }
}

template void swiglu_fwd_cpu(const SwigluFwd<float>&);
template void swiglu_fwd_cpu(const SwigluFwd<double>&);
template void swiglu_bwd_cpu(const SwigluBwd<float>&);
template void swiglu_bwd_cpu(const SwigluBwd<double>&);

}  // namespace slip
