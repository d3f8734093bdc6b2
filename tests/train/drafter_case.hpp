// A drafter small enough for exact statements, with random weights, features and documents.
#pragma once
#include <cmath>
#include <limits>

#include "support/test_device.hpp"
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
  DrafterModel m{.hidden = 16,
                 .intermediate = 24,
                 .layers = 3,
                 .heads = 4,
                 .kv_heads = 2,
                 .head_dim = 8,
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

inline double largest(const std::vector<double>& v) {
  double most = 0;
  for (const double x : v) most = std::max(most, std::abs(x));
  return most;
}
// of all gradients, those of one tensor
inline std::vector<double> part(const std::vector<double>& flat, const ParameterLayout::Entry& e) {
  return {flat.begin() + e.offset, flat.begin() + e.offset + e.count};
}

template <class T, Device device = Device::cpu> class DrafterRig {
 public:
  explicit DrafterRig(const DrafterModel& m, int64_t max_tokens = 64, int64_t blocks_per_pass = 64,
                      bool fp8 = false, bool fp8_head = false)
      : queue_(make_queue(device)),
        arena_(device),
        drafter(make_drafter<T>(m, {max_tokens, blocks_per_pass, max_tokens + m.block, fp8, fp8_head}, arena_,
                                queue_)),
        pass(make_pass_buffers<T>(m, drafter.limits, arena_)),
        embed_(arena_.take2<T>("embed", m.vocab, m.hidden)),
        head_(arena_.take2<T>("head", m.vocab, m.hidden)),
        row_("row", max_tokens, arena_) {
    fill_rows(embed_, random_matrix<Bf16>(11, m.vocab, m.hidden), queue_);
    fill_rows(head_, random_matrix<Bf16>(12, m.vocab, m.hidden), queue_);
    // Gains away from 1 and matrices large enough that every part matters.
    std::vector<float> weights(static_cast<size_t>(drafter.layout.count));
    for (const ParameterLayout::Entry& e : drafter.layout.entries) {
      const uint64_t name = fnv1a64(e.name);
      const double scale = e.shape.size() == 1 ? 0.2 : 1.2 / std::sqrt(static_cast<double>(e.shape.back()));
      for (int64_t i = 0; i < e.count; ++i) {
        const double x = scale * random_normal(13, name, static_cast<uint64_t>(i));
        weights[static_cast<size_t>(e.offset + i)] =
            round_bf16(static_cast<float>(x)) + (e.shape.size() == 1 ? 1.0f : 0.0f);
      }
    }
    set_weights(drafter, weights, queue_);
    quantize_head<T>(pass, head_, queue_);
  }
  DrafterRig(const DrafterRig&) = delete;
  DrafterRig& operator=(const DrafterRig&) = delete;

  // What a row gives. Features that no block may read can be anything; those that are not given are NaN.
  Outcome run(const RowTokens& row, const RowBlocks& blocks, const Matrix& features,
              RowMode mode = RowMode::train, const std::function<void(int64_t)>& on_ready = {}) {
    clear_grads();
    const View2<T> x = drafter.context.x;
    Matrix context(x.rows, x.cols, std::vector<double>(static_cast<size_t>(x.rows * x.cols), std::nan("")));
    std::copy(features.values.begin(), features.values.end(), context.values.begin());
    fill_rows(x, context, queue_);
    const Packed packed = row_.set(row.ids, row.lengths, queue_);
    Outcome out;
    std::vector<T> hidden;
    out.sums = run_blocks<T>(drafter, pass, packed.position, blocks, embed_, head_, rule, mode, queue_,
                             &hidden, on_ready);
    for (const T h : hidden) out.hidden.push_back(element_value(h));
    out.grads = grads();
    return out;
  }
  // The same from a slot of the mailbox, without the hidden states; nullopt where run_row finds NaN or
  // infinity.
  std::optional<Outcome> run_slot(const RowTokens& row, const RowBlocks& blocks,
                                  const std::vector<Bf16>& slot) {
    clear_grads();
    const Packed packed = row_.set(row.ids, row.lengths, queue_);
    const Buffer taps(device == Device::cpu ? Place::host : Place::device,
                      static_cast<int64_t>(slot.size() * sizeof(Bf16)));
    upload(taps.as<Bf16>(), slot, queue_);
    const auto sums = run_row<T>(drafter, pass, taps.as<Bf16>(), packed.tokens, packed.position, blocks,
                                 embed_, head_, rule, RowMode::train, queue_);
    if (!sums) return std::nullopt;
    return Outcome{*sums, {}, grads()};
  }
  std::vector<double> grads() const {
    const std::vector<Acc<T>> g = downloaded<Acc<T>>(drafter.grads, drafter.layout.count, queue_);
    return {g.begin(), g.end()};
  }

 private:
  void clear_grads() {
    zero(drafter.grads, drafter.layout.count * static_cast<int64_t>(sizeof(Acc<T>)), queue_);
  }

  TestQueue queue_;
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
