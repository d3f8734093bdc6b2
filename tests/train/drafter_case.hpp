// A drafter small enough for exact statements, with random weights, features and documents, on the CPU.
#pragma once
#include <cmath>
#include <limits>

#include "support/matrix.hpp"
#include "train/step.hpp"

namespace slip::testing {

enum class MaskKind { full, sliding_causal, sliding_open, mixed };  // open: not causal inside the block
inline constexpr MaskKind kMaskKinds[] = {MaskKind::full, MaskKind::sliding_causal, MaskKind::sliding_open,
                                          MaskKind::mixed};
inline const char* name_of(MaskKind kind) {
  static const char* const kNames[] = {"full", "sliding causal", "sliding not causal", "mixed"};
  return kNames[static_cast<size_t>(kind)];
}

inline DrafterModel small_model(MaskKind kind, int64_t block = 4) {
  DrafterModel m{.hidden = 12,
                 .intermediate = 20,
                 .layers = 3,
                 .heads = 4,
                 .kv_heads = 2,
                 .head_dim = 6,
                 .vocab = 33,
                 .block = block,
                 .mask_token = 32,
                 .target_layers = 4,
                 .taps = {0, 2},
                 .window = 6};
  const bool mixed = kind == MaskKind::mixed;
  const bool sliding = kind != MaskKind::full;
  m.sliding = {sliding, sliding, sliding && !mixed};
  m.causal = {sliding && kind != MaskKind::sliding_open, kind == MaskKind::sliding_causal,
              kind == MaskKind::sliding_causal};
  m.rope.theta = 10000;
  return m;
}

// Documents of these lengths in one row; tokens in [0, vocab - 1), every token supervised with the
// probability `supervised`.
inline RowTokens random_row(const DrafterModel& m, const std::vector<int64_t>& lengths, uint64_t seed = 1,
                            double supervised = 1) {
  RowTokens row;
  for (const int64_t n : lengths) {
    row.lengths.push_back(n);
    row.document_ids.push_back(static_cast<int64_t>(row.document_ids.size()));
    for (int64_t t = 0; t < n; ++t) {
      const uint64_t at = row.ids.size();
      row.ids.push_back(static_cast<int32_t>(random_u64(seed, 2, at) % static_cast<uint64_t>(m.vocab - 1)));
      row.mask.push_back(static_cast<double>(random_u64(seed, 3, at) % 1000) < 1000 * supervised);
    }
  }
  return row;
}

inline Matrix random_features(const DrafterModel& m, int64_t tokens, uint64_t seed = 1) {
  return random_matrix<Bf16>(seed, tokens, static_cast<int64_t>(m.taps.size()) * m.hidden);
}

// Blocks of a row at these anchors, one list per document, in tokens of the document.
inline RowBlocks blocks_at(const DrafterModel& m, const RowTokens& row,
                           const std::vector<std::vector<int>>& anchors, LabelMask rule = LabelMask::prefix) {
  RowBlocks out;
  out.block = m.block;
  int64_t start = 0;
  for (size_t d = 0; d < row.lengths.size(); ++d) {
    const auto first = static_cast<size_t>(start), n = static_cast<size_t>(row.lengths[d]);
    add_document(out, m, rule, std::span(row.ids).subspan(first, n), std::span(row.mask).subspan(first, n),
                 anchors.at(d), start);
    start += row.lengths[d];
  }
  return out;
}

struct Outcome {
  StepSums sums;
  std::vector<double> hidden;  // (blocks * block, H)
  std::vector<double> grads;   // numerators, flat
};

// block i of an outcome
inline std::vector<double> block_of(const Outcome& o, const DrafterModel& m, size_t i) {
  const auto n = static_cast<int64_t>(m.block * m.hidden);
  const auto from = o.hidden.begin() + static_cast<int64_t>(i) * n;
  return {from, from + n};
}

template <class T> class DrafterRig {
 public:
  explicit DrafterRig(const DrafterModel& m, int64_t max_tokens = 64, int64_t blocks_per_pass = 64)
      : arena_(Device::cpu),
        drafter(make_drafter<T>(m, {max_tokens, blocks_per_pass, max_tokens + m.block}, arena_, queue_)),
        pass(make_pass_buffers<T>(m, drafter.limits, arena_)),
        embed_(arena_.take2<T>("embed", m.vocab, m.hidden)),
        head_(arena_.take2<T>("head", m.vocab, m.hidden)),
        row_("row", max_tokens, arena_) {
    fill(embed_, random_matrix<Bf16>(11, m.vocab, m.hidden));
    fill(head_, random_matrix<Bf16>(12, m.vocab, m.hidden));
    // Gains away from 1 and matrices large enough that every part matters.
    for (const ParameterLayout::Entry& e : drafter.layout.entries) {
      const uint64_t name = fnv1a64(e.name);
      const double scale = e.shape.size() == 1 ? 0.2 : 1.2 / std::sqrt(static_cast<double>(e.shape.back()));
      for (int64_t i = 0; i < e.count; ++i) {
        const double x = scale * random_normal(13, name, static_cast<uint64_t>(i));
        drafter.weights[e.offset + i] = static_cast<T>(round_bf16(static_cast<float>(x)));
        if (e.shape.size() == 1) drafter.weights[e.offset + i] += 1;
      }
    }
  }
  DrafterRig(const DrafterRig&) = delete;
  DrafterRig& operator=(const DrafterRig&) = delete;

  // What a row gives. Features that no block may read can be anything; those that are not given are NaN.
  Outcome run(const RowTokens& row, const RowBlocks& blocks, const Matrix& features,
              RowMode mode = RowMode::train) {
    std::fill_n(drafter.grads, drafter.layout.count, Acc<T>(0));
    const View2<T> x = drafter.context.x;
    std::fill_n(x.data, x.rows * x.cols, std::numeric_limits<T>::quiet_NaN());
    fill(x.rows_from(0, features.rows), features);
    const Packed packed = row_.set(row.ids, row.lengths, queue_);
    Outcome out;
    std::vector<T> hidden;
    out.sums =
        run_blocks<T>(drafter, pass, packed.position, blocks, embed_, head_, rule, mode, queue_, &hidden);
    out.hidden.assign(hidden.begin(), hidden.end());
    out.grads.assign(drafter.grads, drafter.grads + drafter.layout.count);
    return out;
  }
  // The same from a slot of the mailbox, without the hidden states; nullopt where run_row finds NaN or
  // infinity.
  std::optional<Outcome> run_slot(const RowTokens& row, const RowBlocks& blocks,
                                  const std::vector<Bf16>& slot) {
    std::fill_n(drafter.grads, drafter.layout.count, Acc<T>(0));
    const Packed packed = row_.set(row.ids, row.lengths, queue_);
    const auto sums = run_row<T>(drafter, pass, slot.data(), packed.tokens, packed.position, blocks, embed_,
                                 head_, rule, RowMode::train, queue_);
    if (!sums) return std::nullopt;
    return Outcome{*sums, {}, {drafter.grads, drafter.grads + drafter.layout.count}};
  }

 private:
  static void fill(const View2<T>& to, const Matrix& from) {
    for (int64_t r = 0; r < from.rows; ++r) {
      for (int64_t c = 0; c < from.cols; ++c) to.at(r, c) = static_cast<T>(from.at(r, c));
    }
  }

  Queue queue_;
  Arena arena_;

 public:
  Drafter<T> drafter;
  PassBuffers<T> pass;
  LossRule rule{.kind = LossKind::decay, .gamma = 4};

 private:
  View2<T> embed_, head_;
  PackedRow row_;
};

}  // namespace slip::testing
