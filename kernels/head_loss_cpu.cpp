#include <algorithm>
#include <cmath>

#include "kernels/eigen_maps.hpp"
#include "kernels/head_loss.hpp"

namespace slip {
namespace {

// Log-sum-exp, label logit and argmax of one row of logits.
template <class T> void score_row(const HeadLoss<T>& a, const T* logits, int row, T& lse) {
  const int64_t vocab = a.head.rows;
  const auto z = array(logits, vocab);
  const T top = z.maxCoeff();
  lse = top + std::log((z - top).exp().sum());
  const int label = a.labels[row];
  require(label >= 0 && label < vocab, "head_loss: a label is outside the vocabulary");
  a.nll[row] = lse - logits[label];
  a.correct[row] = logits[label] == top && std::find(logits, logits + label, top) == logits + label;
}

}  // namespace

template <class T> void head_loss_cpu(const HeadLoss<T>& a) {
  const int64_t h = a.hidden.cols, vocab = a.head.rows, blocks = a.hidden.rows / a.block;
  require(a.hidden.rows % a.block == 0 && a.head.cols == h, "head_loss: shapes do not fit");
  require(a.chunk_rows >= a.block, "head_loss: a chunk must hold a block");
  std::fill_n(a.nll, a.hidden.rows, T(0));
  std::fill_n(a.weight, a.hidden.rows, T(0));
  std::fill_n(a.correct, a.hidden.rows, uint8_t{0});
  if (!a.dhidden.empty()) {
    for (int64_t r = 0; r < a.dhidden.rows; ++r) std::fill_n(a.dhidden.row(r), h, T(0));
  }
  Eigen::Array<T, Eigen::Dynamic, 1> lse(a.chunk_rows);
  const auto head = map(a.head);
  for (int64_t first = 0; first < blocks;) {
    int64_t last = first;  // blocks [first, last) fill a chunk
    const int begin = a.block_begin_host[first];
    while (last < blocks && a.block_begin_host[last + 1] - begin <= a.chunk_rows) ++last;
    const int64_t rows = a.block_begin_host[last] - begin;
    const View2<T> hidden(a.chunk_hidden, rows, h), dhidden(a.chunk_dhidden, rows, h),
        logits(a.chunk_logits, rows, vocab);
    for (int64_t r = 0; r < rows; ++r) std::copy_n(a.hidden.row(a.rows[begin + r]), h, hidden.row(r));
    if (rows > 0 && a.fp8.empty()) {
      map(logits).noalias() = map(hidden) * head.transpose();
    } else if (rows > 0) {
      const Fp8Rows quantized = a.fp8.hidden.rows_from(0, rows);
      quantize_fp8_cpu<T>({hidden, quantized, {}, a.fp8.largest});
      fp8_matmul_cpu<T, T>({quantized, a.fp8.head, logits});
    }
    for (int64_t r = 0; r < rows; ++r) score_row(a, logits.row(r), a.rows[begin + r], lse[r]);
    for (int64_t b = first; b < last; ++b) {
      block_weights(a.rule, a.block, a.valid + b * a.block, a.nll + b * a.block, a.weight + b * a.block);
    }
    if (rows > 0 && !a.dhidden.empty()) {
      for (int64_t r = 0; r < rows; ++r) {
        const int row = a.rows[begin + r];
        auto z = array(logits.row(r), vocab);
        z = (z - lse[r]).exp();
        z[a.labels[row]] -= 1;
        if (a.fp8.empty()) {
          z *= a.weight[row];
        } else {
          for (int64_t c = 0; c < vocab; ++c)
            a.fp8.gradient.q.at(r, c) = to_e4m3(static_cast<float>(z[c]) * kE4m3Largest);
          a.fp8.gradient.scale[r] = static_cast<float>(a.weight[row]) / kE4m3Largest;
        }
      }
      if (a.fp8.empty()) {
        map(dhidden).noalias() = map(logits) * head;
      } else {
        fp8_matmul_cpu<T, T>({a.fp8.gradient.rows_from(0, rows), a.fp8.turned, dhidden});
      }
      for (int64_t r = 0; r < rows; ++r) std::copy_n(dhidden.row(r), h, a.dhidden.row(a.rows[begin + r]));
    }
    first = last;
  }
}

template void head_loss_cpu(const HeadLoss<float>&);
template void head_loss_cpu(const HeadLoss<double>&);

}  // namespace slip
