#include <cmath>

#include "kernels/eigen_maps.hpp"
#include "kernels/rope.hpp"

namespace slip {

template <class T> void head_rope_fwd_cpu(const HeadRopeFwd<T>& a) {
  const int64_t d = a.head_dim, half = a.table.cos.cols;
  const int heads = a.heads + a.more_heads;
  require(a.x.cols == heads * d && a.y.cols == a.x.cols && a.y.rows == a.x.rows,
          "head_rope_fwd: shapes do not fit");
  require(2 * half <= d, "head_rope_fwd: more rotary components than the head has");
  Eigen::Array<T, 1, Eigen::Dynamic> n(d);
  for (int64_t r = 0; r < a.x.rows; ++r) {
    const auto cos = array(a.table.cos.row(a.position[r]), half).template cast<T>();
    const auto sin = array(a.table.sin.row(a.position[r]), half).template cast<T>();
    for (int head = 0; head < heads; ++head) {
      const T* const gain = head < a.heads ? a.gain : a.more_gain;
      n = array(a.x.row(r) + head * d, d);
      if (gain != nullptr) {
        const T inv = T(1) / std::sqrt(n.square().mean() + static_cast<T>(a.eps));
        if (a.centred) {
          n *= inv * (T(1) + array(gain, d));
        } else {
          n *= inv * array(gain, d);
        }
        if (a.inv_rms != nullptr) a.inv_rms[r * heads + head] = inv;
      }
      auto y = array(a.y.row(r) + head * d, d);
      y.head(half) = n.head(half) * cos - n.segment(half, half) * sin;
      y.segment(half, half) = n.segment(half, half) * cos + n.head(half) * sin;
      y.tail(d - 2 * half) = n.tail(d - 2 * half);
    }
  }
}

template <class T, class G> void head_rope_bwd_cpu(const HeadRopeBwd<T, G>& a) {
  const int64_t d = a.head_dim, half = a.table.cos.cols;
  require(a.dy.cols == a.heads * d && a.dx.cols == a.dy.cols && a.dx.rows == a.x.rows,
          "head_rope_bwd: shapes do not fit");
  const auto gain = array(a.gain, d);
  auto dgain = array(a.dgain, d);
  Eigen::Array<T, 1, Eigen::Dynamic> dn(d);  // gradient of the normed head, before rotation
  for (int64_t r = 0; r < a.x.rows; ++r) {
    const auto cos = array(a.table.cos.row(a.position[r]), half).template cast<T>();
    const auto sin = array(a.table.sin.row(a.position[r]), half).template cast<T>();
    for (int head = 0; head < a.heads; ++head) {
      const auto x = array(a.x.row(r) + head * d, d);
      const auto dy = array(a.dy.row(r) + head * d, d);
      const T inv = a.inv_rms[r * a.heads + head];
      dn.head(half) = dy.head(half) * cos + dy.segment(half, half) * sin;
      dn.segment(half, half) = dy.segment(half, half) * cos - dy.head(half) * sin;
      dn.tail(d - 2 * half) = dy.tail(d - 2 * half);
      dgain += dn * x * inv;
      const T mean = (dn * gain * x).mean() * inv * inv;
      array(a.dx.row(r) + head * d, d) = (dn * gain - x * mean) * inv;
    }
  }
}

template void head_rope_fwd_cpu(const HeadRopeFwd<float>&);
template void head_rope_fwd_cpu(const HeadRopeFwd<double>&);
template void head_rope_bwd_cpu(const HeadRopeBwd<float, float>&);
template void head_rope_bwd_cpu(const HeadRopeBwd<double, double>&);

}  // namespace slip
