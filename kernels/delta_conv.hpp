// The short convolution in front of the delta rule (target-models.md 6.6, steps 2 and 6), with SiLU and the
// l2 norm of query and key heads in the same pass:
//   c[t][ch] = silu(sum over j < K of taps[ch][K-1-j] * x[t-j][ch]),  terms before the document are zero;
//   in the first `normed` columns each head of head_dim is divided by sqrt(sum of squares + 1e-6).
#pragma once
#include "device/queue.hpp"
#include "device/view.hpp"

namespace slip {

inline constexpr int kMaxConvTaps = 8;
inline constexpr float kL2NormEps = 1e-6f;

template <class T> struct DeltaConvFwd {
  // (tokens, channels); rows may be a column slice of a wider matrix. Where `position` of the first token is
  // not 0, the rows before the first are the tokens before it, and up to tap_count - 1 of them are read.
  View2<const T> x;
  const T* taps;        // (channels, tap_count): the last multiplies the token itself
  int tap_count;        // 1 to kMaxConvTaps
  int head_dim;         // of the normed heads, at most 256
  int64_t normed;       // columns, a multiple of head_dim
  const int* position;  // (tokens) in the document
  View2<T> y;           // (tokens, channels), does not alias x
};
template <class T> void delta_conv_fwd_cpu(const DeltaConvFwd<T>&);
template <class T> void delta_conv_fwd_cuda(const DeltaConvFwd<T>&, CudaStream);
template <class T> void delta_conv_fwd(const DeltaConvFwd<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { delta_conv_fwd_cpu(a); }, [&](auto s) { delta_conv_fwd_cuda(a, s); });
}

// What the convolution will need of the tokens before, for the layers of a model at once: in every group of
// rows, `keep` rows from row `from` on move to the front.
template <class T> struct KeepRows {
  View2<T> rows;  // (groups * group, cols)
  int64_t group;  // rows of a group
  int keep;
  int64_t from;
};
template <class T> void keep_rows_cpu(const KeepRows<T>&);
template <class T> void keep_rows_cuda(const KeepRows<T>&, CudaStream);
template <class T> void keep_rows(const KeepRows<T>& a, const Queue& q) {
  require(a.group > 0 && a.rows.rows % a.group == 0 && a.from >= 0 && a.from + a.keep <= a.group,
          "keep_rows: rows outside their group");
  dispatch<T>(
      q, [&](auto) { keep_rows_cpu(a); }, [&](auto s) { keep_rows_cuda(a, s); });
}

}  // namespace slip
