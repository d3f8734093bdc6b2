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

SourceSums& SourceSums::operator+=(const SourceSums& o) {
  documents += o.documents;
  tokens += o.tokens;
  loss += o.loss;
  weight += o.weight;
  valid += o.valid;
  correct += o.correct;
  accepted += o.accepted;
  blocks += o.blocks;
  return *this;
}
double SourceSums::mean_loss(LossKind kind) const {
  const double d = kind == LossKind::decay ? weight : valid;
  return d > 0 ? loss / d : 0;
}
double SourceSums::accuracy() const { return valid > 0 ? correct / valid : 0; }
double SourceSums::acceptance_length() const { return blocks > 0 ? accepted / blocks + 1 : 0; }

template <class A>
void add_blocks(StepSums& s, int64_t block, std::span<const uint8_t> valid, const A* nll, const A* weight,
                const uint8_t* correct, std::span<const int32_t> source) {
  const int64_t count = static_cast<int64_t>(valid.size()) / block;
  for (int64_t b = 0; b < count; ++b) {
    bool any = false, accepted = true;
    SourceSums part;
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
      part.loss += static_cast<double>(weight[r]) * n;
      part.weight += static_cast<double>(weight[r]);
      part.valid += 1;
      part.correct += correct[r];
      part.accepted += accepted;
    }
    s.blocks += any;
    const size_t of = source.empty() ? 0 : static_cast<size_t>(source[static_cast<size_t>(b)]);
    if (of >= kMaxSources) continue;
    part.blocks = any;
    s.source[of] += part;
  }
  s.draft_positions += static_cast<double>(count * block);
}

void add_documents(StepSums& s, const RowTokens& row) {
  for (size_t d = 0; d < row.lengths.size(); ++d) {
    const size_t of = row.sources.empty() ? 0 : static_cast<size_t>(row.sources[d]);
    if (of >= kMaxSources) continue;
    s.source[of].documents += 1;
    s.source[of].tokens += static_cast<double>(row.lengths[d]);
  }
}

template void add_blocks(StepSums&, int64_t, std::span<const uint8_t>, const float*, const float*,
                         const uint8_t*, std::span<const int32_t>);
template void add_blocks(StepSums&, int64_t, std::span<const uint8_t>, const double*, const double*,
                         const uint8_t*, std::span<const int32_t>);

}  // namespace slip
