// The token that each row of logits chooses: the largest logit / temperature + g, with Gumbel noise g of
// (seed, sequence, position, id): a sample of softmax(logits / temperature). Temperature 0: the largest
// logit. Among equals the lowest id wins. The noise belongs to the position, so a token does not depend on
// how many were asked for at once.
#pragma once
#include <cmath>

#include "core/random.hpp"
#include "device/queue.hpp"
#include "device/view.hpp"

namespace slip {

// -log(-log u), exact to fp32 where it is large; u is uniform in (0, 1).
SLIP_HD inline float gumbel(uint64_t seed, uint64_t sequence, uint64_t counter) {
  const float below = (static_cast<float>(philox(seed, sequence, counter).v[0]) + 0.5f) * 0x1p-32f;  // 1 - u
  return -logf(-log1pf(-below));
}

template <class T> struct SampleRows {
  View2<const Acc<T>> logits;  // (rows, V)
  float temperature;
  uint64_t seed, sequence;
  int64_t position;  // of the token that row 0 chooses; row r: position + r
  int* token;        // (rows)
  float* margin;     // (rows) how far the winner is ahead of the next, in what is compared
};
template <class T> void sample_rows_cpu(const SampleRows<T>&);
template <class T> void sample_rows_cuda(const SampleRows<T>&, CudaStream);
template <class T> void sample_rows(const SampleRows<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { sample_rows_cpu(a); }, [&](auto s) { sample_rows_cuda(a, s); });
}

// The best of the ids seen so far, and the next best.
template <class A> struct Best {
  A first, second;
  int id;
  SLIP_HD static Best none() { return {-INFINITY, -INFINITY, -1}; }
  SLIP_HD void add(A x, int i) {
    const bool better = id < 0 || x > first || (x == first && i < id);
    if (better) {
      second = first;
      first = x;
      id = i;
    } else if (x > second) {
      second = x;
    }
  }
  SLIP_HD void merge(const Best& o) {
    if (o.id < 0) return;
    add(o.first, o.id);
    if (o.second > second) second = o.second;
  }
};
// What is compared of id `id` in row `row`, whose logit is given.
template <class T>
SLIP_HD inline Acc<T> sample_score(const SampleRows<T>& a, int64_t row, int64_t id, Acc<T> logit) {
  if (a.temperature == 0) return logit;
  const uint64_t counter = static_cast<uint64_t>((a.position + row) * a.logits.cols + id);
  return logit / static_cast<Acc<T>>(a.temperature) + gumbel(a.seed, a.sequence, counter);
}

}  // namespace slip
