#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cache_attention.hpp"
#include "kernels/eigen_maps.hpp"
#include "kernels/ref.hpp"

namespace slip {

template <class T> void cache_attention_fwd_ref(const CacheAttentionFwd<T>& a) {
  const AttentionShape& s = a.shape;
  const int64_t cached = a.k.rows - a.q.rows;
  for (int64_t t = 0; t < a.q.rows; ++t) {
    for (int n = 0; n < s.heads; ++n) {
      const int64_t column = int64_t{n} * s.head_dim, kv = int64_t{n / (s.heads / s.kv_heads)} * s.head_dim;
      std::vector<double> p(static_cast<size_t>(cached + t + 1));
      double top = -INFINITY, sum = 0;
      for (size_t k = 0; k < p.size(); ++k) {
        double dot = 0;
        for (int d = 0; d < s.head_dim; ++d)
          dot += to_double(a.q.at(t, column + d)) * to_double(a.k.at(static_cast<int64_t>(k), kv + d));
        p[k] = static_cast<double>(s.scale) * dot;
        top = std::max(top, p[k]);
      }
      for (double& x : p) sum += x = std::exp(x - top);
      for (int d = 0; d < s.head_dim; ++d) {
        double out = 0;
        for (size_t k = 0; k < p.size(); ++k)
          out += p[k] / sum * to_double(a.v.at(static_cast<int64_t>(k), kv + d));
        a.out.at(t, column + d) = from_double<T>(out);
      }
    }
  }
}

// Per key/value head and tile of tokens: the heads of its group share two products with the keys that any
// token sees.
template <class T> void cache_attention_fwd_cpu(const CacheAttentionFwd<T>& a) {
  const AttentionShape& s = a.shape;
  require(a.k.rows >= a.q.rows && a.v.rows == a.k.rows,
          "cache_attention: the cache must hold the new tokens");
  for (int64_t t = 0; !a.kv_new.empty() && t < a.kv_new.rows; ++t)
    array(a.kv_end.row(t), a.kv_new.cols) = array(a.kv_new.row(t), a.kv_new.cols);
  const int group = s.heads / s.kv_heads;
  const int64_t cached = a.k.rows - a.q.rows, tile = std::max(1, 64 / group), dim = s.head_dim;
  RowMatrix<T> q, p, out;
  for (int64_t t0 = 0; t0 < a.q.rows; t0 += tile) {
    const int64_t rows = std::min(tile, a.q.rows - t0), keys = cached + t0 + rows;
    for (int kv = 0; kv < s.kv_heads; ++kv) {
      const auto slice = [&](const View2<const T>& m) {
        return map(m.rows_from(0, keys).cols_from(kv * dim, dim));
      };
      q.resize(rows * group, dim);
      for (int64_t r = 0; r < q.rows(); ++r) {
        q.row(r).array() =
            array(a.q.row(t0 + r / group) + (kv * group + r % group) * dim, dim) * static_cast<T>(s.scale);
      }
      p.noalias() = q * slice(a.k).transpose();
      for (int64_t r = 0; r < p.rows(); ++r) {
        const int64_t seen = cached + t0 + r / group + 1;
        auto row = p.row(r).array().head(seen);
        row = (row - row.maxCoeff()).exp();
        row /= row.sum();
        p.row(r).array().tail(keys - seen).setZero();
      }
      out.noalias() = p * slice(a.v);
      for (int64_t r = 0; r < out.rows(); ++r)
        array(a.out.row(t0 + r / group) + (kv * group + r % group) * dim, dim) = out.row(r).array();
    }
  }
}

template void cache_attention_fwd_ref(const CacheAttentionFwd<float>&);
template void cache_attention_fwd_ref(const CacheAttentionFwd<double>&);
template void cache_attention_fwd_ref(const CacheAttentionFwd<Bf16>&);
template void cache_attention_fwd_cpu(const CacheAttentionFwd<float>&);
template void cache_attention_fwd_cpu(const CacheAttentionFwd<double>&);

}  // namespace slip
