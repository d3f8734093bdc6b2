#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/eigen_maps.hpp"
#include "kernels/gated_delta.hpp"

namespace slip {
namespace {

template <class T> using Column = Eigen::Array<T, Eigen::Dynamic, 1>;

template <class T> T log_decay(const GatedDeltaFwd<T>& x, int64_t t, int h) {
  const T z = x.a.at(t, h) + static_cast<T>(x.dt_bias[h]);
  return -std::exp(static_cast<T>(x.a_log[h])) * (z > 20 ? z : std::log1p(std::exp(z)));
}
template <class T> T write_strength(const GatedDeltaFwd<T>& x, int64_t t, int h) {
  return T(1) / (T(1) + std::exp(-x.b.at(t, h)));
}

// Running sum of the log decays and the write strengths of a chunk, for one value head.
template <class T> struct Gates { Column<T> sum, beta; };

template <class T> Gates<T> gates_of(const GatedDeltaFwd<T>& x, const DeltaChunk& c, int h) {
  Gates<T> g{Column<T>(c.tokens), Column<T>(c.tokens)};
  T sum = 0;
  for (int i = 0; i < c.tokens; ++i) {
    sum += log_decay(x, c.first + i, h);
    g.sum[i] = sum;
    g.beta[i] = write_strength(x, c.first + i, h);
  }
  return g;
}

}  // namespace

void cut_chunks(std::span<const int64_t> lengths, std::vector<DeltaDocument>& documents,
                std::vector<DeltaChunk>& chunks) {
  documents.clear();
  chunks.clear();
  int first = 0;
  for (const int64_t n : lengths) {
    if (n > 0) documents.push_back({first, static_cast<int>(n), 0, 0});
    first += static_cast<int>(n);
  }
  std::stable_sort(documents.begin(), documents.end(),
                   [](const DeltaDocument& a, const DeltaDocument& b) { return a.tokens > b.tokens; });
  for (DeltaDocument& d : documents) {
    d.chunk = static_cast<int>(chunks.size());
    for (int t = 0; t < d.tokens; t += kDeltaChunk)
      chunks.push_back({d.first + t, std::min(kDeltaChunk, d.tokens - t)});
  }
}

template <class T> void gated_delta_fwd_cpu(const GatedDeltaFwd<T>& x) {
  require_delta_shapes(x);
  const DeltaShape& s = x.shape;
  const int64_t dk = s.key_dim, dv = s.value_dim;
  const int group = s.value_heads / s.key_heads;
  const T scale = T(1) / std::sqrt(static_cast<T>(dk));
  std::vector<RowMatrix<T>> state(static_cast<size_t>(group));
  RowMatrix<T> kk, qk, a, p, uw, r;
  for (int d = 0; d < x.row.document_count; ++d) {
    const DeltaDocument& doc = x.row.documents[d];
    for (int key_head = 0; key_head < s.key_heads; ++key_head) {
      const int64_t first = (int64_t{d} * s.value_heads + key_head * group) * dk * dv;
      for (int e = 0; e < group; ++e) {
        RowMatrix<T>& m = state[static_cast<size_t>(e)];
        m.setZero(dk, dv);
        if (x.state != nullptr) m = map(View2<const T>(x.state + first + e * dk * dv, dk, dv));
      }
      for (int t = 0; t < doc.tokens; t += kDeltaChunk) {
        const DeltaChunk c{doc.first + t, std::min(kDeltaChunk, doc.tokens - t)};
        const auto q = map(x.q.rows_from(c.first, c.tokens).cols_from(key_head * dk, dk));
        const auto k = map(x.k.rows_from(c.first, c.tokens).cols_from(key_head * dk, dk));
        kk.noalias() = k * k.transpose();
        qk.noalias() = q * k.transpose();
        for (int e = 0; e < group; ++e) {
          const int h = key_head * group + e;
          RowMatrix<T>& S = state[static_cast<size_t>(e)];
          const auto v = map(x.v.rows_from(c.first, c.tokens).cols_from(h * dv, dv));
          auto out = map(x.out.rows_from(c.first, c.tokens).cols_from(h * dv, dv));
          const Gates<T> g = gates_of(x, c, h);
          a.setZero(c.tokens, c.tokens);
          p.setZero(c.tokens, c.tokens);
          for (int i = 0; i < c.tokens; ++i) {
            for (int j = 0; j <= i; ++j) {
              const T decay = std::exp(g.sum[i] - g.sum[j]);
              p(i, j) = qk(i, j) * decay * scale;
              a(i, j) = g.beta[i] * kk(i, j) * decay;
            }
          }
          const Column<T> grown = g.sum.exp();
          uw.resize(c.tokens, dv + dk);
          uw.leftCols(dv) = g.beta.matrix().asDiagonal() * v;
          uw.rightCols(dk) = (g.beta * grown).matrix().asDiagonal() * k;
          a.template triangularView<Eigen::UnitLower>().solveInPlace(uw);
          r = uw.leftCols(dv);
          r.noalias() -= uw.rightCols(dk) * S;
          out.noalias() = p * r;
          out.noalias() += (grown * scale).matrix().asDiagonal() * (q * S);
          const T last = g.sum[c.tokens - 1];
          r = ((last - g.sum).exp()).matrix().asDiagonal() * r;
          S *= std::exp(last);
          S.noalias() += k.transpose() * r;
        }
      }
      for (int e = 0; x.state_out != nullptr && e < group; ++e)
        map(View2<T>(x.state_out + first + e * dk * dv, dk, dv)) = state[static_cast<size_t>(e)];
    }
  }
}

// Everything that is summed is copied to memory of its own first: where it came from must not decide about
// the order, and so about the bits.
template <class T> void gated_delta_step_cpu(const GatedDeltaFwd<T>& x) {
  require_delta_shapes(x);
  const DeltaShape& s = x.shape;
  const int64_t dk = s.key_dim, dv = s.value_dim;
  const T scale = T(1) / std::sqrt(static_cast<T>(dk));
  RowMatrix<T> S;
  Column<T> k, q, write, out;
  for (int h = 0; h < s.value_heads; ++h) {
    const int64_t key = h / (s.value_heads / s.key_heads) * dk;
    S.setZero(dk, dv);
    if (x.state != nullptr) S = map(View2<const T>(x.state + h * dk * dv, dk, dv));
    for (int64_t t = 0; t < x.q.rows; ++t) {
      k = array(x.k.row(t) + key, dk).transpose();
      write = array(x.v.row(t) + h * dv, dv).transpose();
      S *= std::exp(log_decay(x, t, h));
      for (int64_t i = 0; i < dk; ++i) write -= k[i] * S.row(i).transpose().array();
      write *= write_strength(x, t, h);
      for (int64_t i = 0; i < dk; ++i) S.row(i) += k[i] * write.matrix().transpose();
      if (x.out.empty()) continue;
      q = array(x.q.row(t) + key, dk).transpose() * scale;
      out.setZero(dv);
      for (int64_t i = 0; i < dk; ++i) out += q[i] * S.row(i).transpose().array();
      array(x.out.row(t) + h * dv, dv) = out.transpose();
    }
    if (x.state_out != nullptr) map(View2<T>(x.state_out + h * dk * dv, dk, dv)) = S;
  }
}

template void gated_delta_step_cpu(const GatedDeltaFwd<float>&);
template void gated_delta_step_cpu(const GatedDeltaFwd<double>&);
template void gated_delta_fwd_cpu(const GatedDeltaFwd<float>&);
template void gated_delta_fwd_cpu(const GatedDeltaFwd<double>&);

}  // namespace slip
