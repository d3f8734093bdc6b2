#include "kernels/eigen_maps.hpp"
#include "kernels/swiglu.hpp"

namespace slip {
namespace {

// Both passes compute a row through memory that Eigen has aligned: which columns take its vector exp depends
// on where the result lies, and the backward pass promises the forward's bits.
template <class T> using Row = Eigen::Array<T, 1, Eigen::Dynamic>;
template <class T> void activation(const T* gate_up, Row<T>& act) {
  const auto gate = array(gate_up, act.size()), up = array(gate_up + act.size(), act.size());
  act = gate / (T(1) + (-gate).exp()) * up;
}

}  // namespace

template <class T> void swiglu_fwd_cpu(const SwigluFwd<T>& a) {
  const int64_t width = a.act.cols;
  require(a.gate_up.cols == 2 * width && a.gate_up.rows == a.act.rows,
          "swiglu_fwd: gate_up must be (rows, 2*I)");
  Row<T> act(width);
  for (int64_t r = 0; r < a.act.rows; ++r) {
    activation<T>(a.gate_up.row(r), act);
    array(a.act.row(r), width) = act;
  }
}

// With s = sigmoid(gate):  dgate = dact * up * s * (1 + gate * (1 - s)),  dup = dact * gate * s.
template <class T> void swiglu_bwd_cpu(const SwigluBwd<T>& a) {
  const int64_t width = a.dact.cols;
  require(a.gate_up.cols == 2 * width && a.dgate_up.cols == 2 * width,
          "swiglu_bwd: gate_up must be (rows, 2*I)");
  require(a.act.empty() || (a.act.cols == width && a.act.rows == a.dact.rows),
          "swiglu_bwd: act must be (rows, I)");
  Row<T> s(width), dgate(width), act(width);
  for (int64_t r = 0; r < a.dact.rows; ++r) {
    const auto gate = array(a.gate_up.row(r), width);
    const auto up = array(a.gate_up.row(r) + width, width);
    const auto dact = array(a.dact.row(r), width);
    s = (T(1) + (-gate).exp()).inverse();
    activation<T>(a.gate_up.row(r), act);
    dgate = dact * up * s * (T(1) + gate * (T(1) - s));
    array(a.dgate_up.row(r) + width, width) = dact * gate * s;  // before gate is overwritten where they alias
    array(a.dgate_up.row(r), width) = dgate;
    if (!a.act.empty()) array(a.act.row(r), width) = act;
  }
}

template void swiglu_fwd_cpu(const SwigluFwd<float>&);
template void swiglu_fwd_cpu(const SwigluFwd<double>&);
template void swiglu_bwd_cpu(const SwigluBwd<float>&);
template void swiglu_bwd_cpu(const SwigluBwd<double>&);

}  // namespace slip
