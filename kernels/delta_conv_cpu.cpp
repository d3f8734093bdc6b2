#include <algorithm>
#include <cmath>

#include "kernels/delta_conv.hpp"
#include "kernels/eigen_maps.hpp"

namespace slip {

template <class T> void delta_conv_fwd_cpu(const DeltaConvFwd<T>& a) {
  const int64_t channels = a.x.cols, taps = a.tap_count;
  require(a.y.rows == a.x.rows && a.y.cols == channels, "delta_conv_fwd: y must have the shape of x");
  require(a.normed <= channels && a.normed % a.head_dim == 0, "delta_conv_fwd: whole heads are normed");
  // (taps, channels), so that a tap's products run along the channels
  const Eigen::Array<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> by_tap =
      map(View2<const T>(a.taps, channels, taps)).transpose();
  for (int64_t t = 0; t < a.x.rows; ++t) {
    auto y = array(a.y.row(t), channels);
    y = array(a.x.row(t), channels) * by_tap.row(taps - 1);
    for (int64_t j = 1; j <= std::min<int64_t>(a.position[t], taps - 1); ++j)
      y += array(a.x.row(t - j), channels) * by_tap.row(taps - 1 - j);
    y = y / (T(1) + (-y).exp());
    for (int64_t c = 0; c < a.normed; c += a.head_dim) {
      auto head = y.segment(c, a.head_dim);
      head /= std::sqrt(head.square().sum() + static_cast<T>(kL2NormEps));
    }
  }
}

template <class T> void keep_rows_cpu(const KeepRows<T>& a) {
  for (int64_t first = 0; first < a.rows.rows; first += a.group) {
    for (int i = 0; i < a.keep; ++i)
      std::copy_n(a.rows.row(first + a.from + i), a.rows.cols, a.rows.row(first + i));
  }
}

template void keep_rows_cpu(const KeepRows<float>&);
template void keep_rows_cpu(const KeepRows<double>&);
template void delta_conv_fwd_cpu(const DeltaConvFwd<float>&);
template void delta_conv_fwd_cpu(const DeltaConvFwd<double>&);

}  // namespace slip
