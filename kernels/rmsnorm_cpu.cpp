#include <cmath>

#include "kernels/eigen_maps.hpp"
#include "kernels/rmsnorm.hpp"

namespace slip {

template <class T> void rmsnorm_fwd_cpu(const RmsNormFwd<T>& a) {
  require(a.y.empty() || (a.y.rows == a.x.rows && a.y.cols == a.x.cols),
          "rmsnorm_fwd: y must have the shape of x");
  const int64_t h = a.x.cols;
  for (int64_t r = 0; r < a.x.rows; ++r) {
    const T* x = a.x.row(r);
    if (!a.add.empty()) {
      array(a.sum.row(r), h) = array(x, h) + array(a.add.row(r), h);
      x = a.sum.row(r);
    }
    if (a.capture != nullptr) {
      for (int64_t c = 0; c < h; ++c) a.capture[r * h + c] = to_bf16(static_cast<float>(x[c]));
    }
    if (a.y.empty()) continue;
    const T inv = T(1) / std::sqrt(array(x, h).square().mean() + static_cast<T>(a.eps));
    if (a.centred) {
      array(a.y.row(r), h) = array(x, h) * inv * (T(1) + array(a.gain, h));
    } else {
      array(a.y.row(r), h) = array(x, h) * inv * array(a.gain, h);
    }
    if (a.inv_rms != nullptr) a.inv_rms[r] = inv;
  }
}

template <class T> void rmsnorm_bwd_cpu(const RmsNormBwd<T>& a) {
  require(a.dy.rows == a.x.rows && a.dy.cols == a.x.cols, "rmsnorm_bwd: dy must have the shape of x");
  const int64_t h = a.x.cols;
  const auto gain = array(a.gain, h);
  auto dgain = array(a.dgain, h);
  for (int64_t r = 0; r < a.x.rows; ++r) {
    const T inv = a.inv_rms[r];
    const auto x = array(a.x.row(r), h);
    const auto dy = array(a.dy.row(r), h);
    const T mean = (dy * gain * x).mean() * inv * inv;  // mean(u * n) * r
    dgain += dy * x * inv;
    if (a.dx.empty()) continue;
    auto dx = array(a.dx.row(r), h);
    if (a.residual.empty()) {
      dx = (dy * gain - x * mean) * inv;
    } else {
      dx = (dy * gain - x * mean) * inv + array(a.residual.row(r), h);
    }
  }
}

template void rmsnorm_fwd_cpu(const RmsNormFwd<float>&);
template void rmsnorm_fwd_cpu(const RmsNormFwd<double>&);
template void rmsnorm_bwd_cpu(const RmsNormBwd<float>&);
template void rmsnorm_bwd_cpu(const RmsNormBwd<double>&);

}  // namespace slip
