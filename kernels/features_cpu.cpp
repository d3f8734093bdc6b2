#include <cmath>

#include "kernels/features.hpp"

namespace slip {

template <class T> void join_taps_cpu(const JoinTaps<T>& a) {
  require(a.taps > 0 && a.x.cols % a.taps == 0 && a.x.rows <= a.slot_tokens, "join_taps: shapes do not fit");
  const int64_t h = a.x.cols / a.taps;
  for (int64_t t = 0; t < a.x.rows; ++t) {
    for (int tap = 0; tap < a.taps; ++tap) {
      const Bf16* in = a.slot + (tap * a.slot_tokens + t) * h;
      T* out = a.x.row(t) + tap * h;
      uint32_t bad = 0;
      for (int64_t c = 0; c < h; ++c) {
        out[c] = static_cast<T>(to_float(in[c]));
        bad |= (in[c].bits & 0x7f80u) == 0x7f80u;  // exponent all ones: infinite or NaN
      }
      if (bad) *a.non_finite = 1;
    }
  }
}

template <class From, class To> void cast_cpu(const Cast<From, To>& a) {
  require(a.from.rows == a.to.rows && a.from.cols == a.to.cols, "cast: shapes differ");
  for (int64_t r = 0; r < a.from.rows; ++r) {
    const From* in = a.from.row(r);
    To* out = a.to.row(r);
    for (int64_t c = 0; c < a.from.cols; ++c) {
      if constexpr (sizeof(To) == 2) {
        out[c] = to_bf16(static_cast<float>(to_float(in[c])));
      } else {
        out[c] = static_cast<To>(to_float(in[c]));
      }
    }
  }
}

template void join_taps_cpu(const JoinTaps<float>&);
template void join_taps_cpu(const JoinTaps<double>&);
template void cast_cpu(const Cast<float, float>&);
template void cast_cpu(const Cast<double, double>&);
template void cast_cpu(const Cast<float, double>&);
template void cast_cpu(const Cast<double, float>&);
template void cast_cpu(const Cast<float, Bf16>&);
template void cast_cpu(const Cast<Bf16, float>&);
template void cast_cpu(const Cast<Bf16, double>&);

}  // namespace slip
