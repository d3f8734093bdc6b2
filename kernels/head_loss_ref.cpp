// The specification of kernels/head_loss.hpp: row by row, all logits of a row at once, in double.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/head_loss.hpp"
#include "kernels/ref.hpp"

namespace slip {

template <class T> void head_loss_ref(const HeadLoss<T>& a) {
  const int64_t vocabulary = a.head.rows, width = a.hidden.cols;
  const auto block = static_cast<size_t>(a.block);
  std::vector<std::vector<double>> probability(block);  // softmax of each row of the block
  std::vector<double> nll(block), weight(block), dhidden(static_cast<size_t>(width));
  for (int64_t first = 0; first < a.hidden.rows; first += a.block) {
    for (int64_t j = 0; j < a.block; ++j) {
      const int64_t row = first + j;
      nll[static_cast<size_t>(j)] = 0;
      a.correct[row] = 0;
      if (!a.valid[row]) continue;
      std::vector<double>& p = probability[static_cast<size_t>(j)];
      p.assign(static_cast<size_t>(vocabulary), 0);
      for (int64_t v = 0; v < vocabulary; ++v) {
        for (int64_t h = 0; h < width; ++h)
          p[static_cast<size_t>(v)] += to_double(a.hidden.at(row, h)) * to_double(a.head.at(v, h));
      }
      const auto best = std::max_element(p.begin(), p.end());  // the first of equals
      const double largest = *best, label_logit = p[static_cast<size_t>(a.labels[row])];
      a.correct[row] = best - p.begin() == a.labels[row];
      double sum = 0;
      for (const double logit : p) sum += std::exp(logit - largest);
      const double lse = largest + std::log(sum);
      for (double& x : p) x = std::exp(x - lse);
      nll[static_cast<size_t>(j)] = lse - label_logit;
    }
    block_weights(a.rule, a.block, a.valid + first, nll.data(), weight.data());
    for (int64_t j = 0; j < a.block; ++j) {
      const int64_t row = first + j;
      a.nll[row] = static_cast<Acc<T>>(nll[static_cast<size_t>(j)]);
      a.weight[row] = static_cast<Acc<T>>(weight[static_cast<size_t>(j)]);
      if (a.dhidden.empty()) continue;
      std::fill(dhidden.begin(), dhidden.end(), 0);
      for (int64_t v = 0; a.valid[row] && v < vocabulary; ++v) {
        const double p = probability[static_cast<size_t>(j)][static_cast<size_t>(v)];
        const double dlogit = weight[static_cast<size_t>(j)] * (p - (v == a.labels[row] ? 1 : 0));
        for (int64_t h = 0; h < width; ++h)
          dhidden[static_cast<size_t>(h)] += dlogit * to_double(a.head.at(v, h));
      }
      for (int64_t h = 0; h < width; ++h)
        a.dhidden.at(row, h) = from_double<T>(dhidden[static_cast<size_t>(h)]);
    }
  }
}

template void head_loss_ref(const HeadLoss<float>&);
template void head_loss_ref(const HeadLoss<double>&);
template void head_loss_ref(const HeadLoss<Bf16>&);

}  // namespace slip
