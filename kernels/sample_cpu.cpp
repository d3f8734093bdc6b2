#include "kernels/sample.hpp"

namespace slip {

template <class T> void sample_rows_cpu(const SampleRows<T>& a) {
  for (int64_t r = 0; r < a.logits.rows; ++r) {
    Best<Acc<T>> best = Best<Acc<T>>::none();
    for (int64_t id = 0; id < a.logits.cols; ++id)
      best.add(sample_score(a, r, id, a.logits.at(r, id)), static_cast<int>(id));
    a.token[r] = best.id;
    a.margin[r] = static_cast<float>(best.first - best.second);
  }
}

template void sample_rows_cpu(const SampleRows<float>&);
template void sample_rows_cpu(const SampleRows<double>&);

}  // namespace slip
