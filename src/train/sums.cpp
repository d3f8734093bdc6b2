#include "train/sums.hpp"

namespace slip {

StepSums& StepSums::operator+=(const StepSums& o) {
  StepSums other = o;
  const std::span<double> mine = values(), theirs = other.values();
  for (size_t i = 0; i < mine.size(); ++i) mine[i] += theirs[i];
  return *this;
}

double StepSums::mean_loss(LossKind kind) const {
  const double d = denominator(kind);
  return d > 0 ? loss / d : 0;
}
double StepSums::accuracy() const { return valid > 0 ? correct / valid : 0; }
double StepSums::acceptance_length() const { return blocks > 0 ? accepted / blocks + 1 : 0; }

template <class A>
void add_blocks(StepSums& s, int64_t block, std::span<const uint8_t> valid, const A* nll, const A* weight,
                const uint8_t* correct) {
  const int64_t count = static_cast<int64_t>(valid.size()) / block;
  for (int64_t b = 0; b < count; ++b) {
    bool any = false, accepted = true;
    for (int64_t j = 0; j < block; ++j) {
      const int64_t r = b * block + j;
      if (!valid[static_cast<size_t>(r)]) continue;
      any = true;
      accepted = accepted && correct[r];
      const double n = static_cast<double>(nll[r]);
      s.loss += static_cast<double>(weight[r]) * n;
      s.weight += static_cast<double>(weight[r]);
      s.valid += 1;
      s.correct += correct[r];
      s.accepted += accepted;
      s.slot_valid[static_cast<size_t>(j)] += 1;
      s.slot_correct[static_cast<size_t>(j)] += correct[r];
      s.slot_loss[static_cast<size_t>(j)] += n;
    }
    s.blocks += any;
  }
  s.draft_positions += static_cast<double>(count * block);
}
template void add_blocks(StepSums&, int64_t, std::span<const uint8_t>, const float*, const float*,
                         const uint8_t*);
template void add_blocks(StepSums&, int64_t, std::span<const uint8_t>, const double*, const double*,
                         const uint8_t*);

}  // namespace slip
