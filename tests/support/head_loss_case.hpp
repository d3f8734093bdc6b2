// What the tests of the head loss share: a problem on the host, the reference's answer in double, and the
// same problem on a queue.
#pragma once
#include <algorithm>
#include <vector>

#include "kernels/head_loss.hpp"
#include "support/kernel_test.hpp"

namespace slip::testing {

struct LossProblem {
  int block;
  LossRule rule;
  Matrix hidden, head;
  std::vector<int> labels;
  std::vector<uint8_t> valid;

  int64_t rows() const { return hidden.rows; }
  // Indices of the valid rows, and where each block's begin.
  std::vector<int> valid_rows() const {
    std::vector<int> out;
    for (size_t r = 0; r < valid.size(); ++r) {
      if (valid[r]) out.push_back(static_cast<int>(r));
    }
    return out;
  }
  std::vector<int> block_begin() const {
    std::vector<int> out = {0};
    for (auto v = valid.begin(); v != valid.end(); v += block) {
      out.push_back(out.back() + static_cast<int>(std::count(v, v + block, 1)));
    }
    return out;
  }
};

struct LossAnswer {
  Matrix dhidden, nll, weight;
  std::vector<uint8_t> correct;
};
inline LossAnswer reference(const LossProblem& p) {
  LossAnswer r{Matrix(p.rows(), p.hidden.cols), Matrix(1, p.rows()), Matrix(1, p.rows()),
               std::vector<uint8_t>(p.labels.size())};
  const std::vector<int> rows = p.valid_rows(), begin = p.block_begin();
  head_loss_ref<double>({.hidden = p.hidden.view(),
                         .head = p.head.view(),
                         .block = p.block,
                         .rule = p.rule,
                         .labels = p.labels.data(),
                         .valid = p.valid.data(),
                         .rows = rows.data(),
                         .block_begin_host = begin.data(),
                         .dhidden = r.dhidden.view(),
                         .nll = r.nll.values.data(),
                         .weight = r.weight.values.data(),
                         .correct = r.correct.data()});
  return r;
}

// Memory of Fp8Head for chunks of `rows`.
struct HeadCodes {
  DeviceArray<uint8_t> head, turned, hidden, gradient;
  DeviceArray<float> head_scale, turned_scale, hidden_scale, gradient_scale;
  DeviceArray<uint32_t> largest;

  HeadCodes(int64_t v, int64_t h, int64_t rows, const Queue& q)
      : head(q, v, h),
        turned(q, h, v),
        hidden(q, rows, h),
        gradient(q, rows, v),
        head_scale(q, 1, v),
        turned_scale(q, 1, h),
        hidden_scale(q, 1, rows),
        gradient_scale(q, 1, rows),
        largest(q, 1, std::max(v, rows) + h) {}
  Fp8Head get() const {
    const auto codes = [](const DeviceArray<uint8_t>& c, const DeviceArray<float>& scale) {
      const View2<uint8_t> x = c.view();
      return Fp8Rows{{reinterpret_cast<E4m3*>(x.data), x.rows, x.cols}, scale.data()};
    };
    return {codes(head, head_scale), codes(turned, turned_scale), codes(hidden, hidden_scale),
            codes(gradient, gradient_scale), largest.data()};
  }
};

template <class T> struct LossRun {
  DeviceArray<T> dhidden;
  DeviceArray<Acc<T>> nll, weight;
  DeviceArray<uint8_t> correct;

  // Computes at once, in chunks of `chunk_rows`; `gradient` false: no dhidden wanted; `fp8`: the head's
  // products.
  LossRun(const LossProblem& p, int64_t chunk_rows, const Queue& q, bool gradient = true, bool fp8 = false)
      : dhidden(q, p.rows(), p.hidden.cols),
        nll(q, 1, p.rows()),
        weight(q, 1, p.rows()),
        correct(q, 1, p.rows()) {
    const std::vector<int> begin = p.block_begin();
    const DeviceArray<T> hidden(q, p.hidden), head(q, p.head);
    const DeviceArray<int> labels(q, row_of(p.labels)), rows(q, row_of(p.valid_rows()));
    const DeviceArray<uint8_t> valid(q, row_of(p.valid));
    const int64_t h = p.hidden.cols;
    const DeviceArray<T> chunk_hidden(q, 1, chunk_rows * h), chunk_dhidden(q, 1, chunk_rows * h);
    const DeviceArray<T> chunk_logits(q, 1, chunk_rows * p.head.rows);
    const HeadCodes codes(fp8 ? p.head.rows : 1, fp8 ? h : 1, fp8 ? chunk_rows : 1, q);
    const Fp8Head head_fp8 = fp8 ? codes.get() : Fp8Head();
    if (fp8) quantize_fp8<T>({head.view(), head_fp8.head, head_fp8.turned, head_fp8.largest}, q);
    head_loss<T>({.hidden = hidden.view(),
                  .head = head.view(),
                  .block = p.block,
                  .rule = p.rule,
                  .labels = labels.data(),
                  .valid = valid.data(),
                  .rows = rows.data(),
                  .block_begin_host = begin.data(),
                  .dhidden = gradient ? dhidden.view() : View2<T>(),
                  .nll = nll.data(),
                  .weight = weight.data(),
                  .correct = correct.data(),
                  .chunk_rows = chunk_rows,
                  .chunk_hidden = chunk_hidden.data(),
                  .chunk_dhidden = chunk_dhidden.data(),
                  .chunk_logits = chunk_logits.data(),
                  .fp8 = head_fp8},
                 q);
    EXPECT_TRUE(chunk_hidden.intact() && chunk_dhidden.intact() && chunk_logits.intact());  // waits
  }
};

// Labels all over the vocabulary, its ends among them; slot 0 never valid, a third of the others not.
template <class T>
LossProblem make_loss_problem(int64_t blocks, int block, int64_t hidden, int64_t vocabulary, LossRule rule,
                              uint64_t seed = 1) {
  LossProblem p{block,
                rule,
                random_matrix<T>(seed, blocks * block, hidden),
                random_matrix<T>(seed + 1, vocabulary, hidden, 2 / std::sqrt(static_cast<double>(hidden))),
                {},
                {}};
  const int64_t ends[] = {0, vocabulary - 1, vocabulary / 2, vocabulary / 2 - 1};
  for (int64_t r = 0; r < blocks * block; ++r) {
    const auto u = static_cast<uint64_t>(r);
    const auto any = static_cast<int64_t>(random_u64(seed + 2, 0, u) % static_cast<uint64_t>(vocabulary));
    p.valid.push_back(r % block != 0 && random_u64(seed + 3, 0, u) % 3 != 0);
    p.labels.push_back(p.valid.back() ? static_cast<int>(r % 5 < 4 ? ends[r % 4] : any)
                                      : -1);  // read only where valid
  }
  return p;
}

}  // namespace slip::testing
