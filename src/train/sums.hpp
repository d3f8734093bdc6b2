// What a step adds up: numerators and counts only, so that ranks, rows and passes add and one division ends
// it.
#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "kernels/head_loss.hpp"
#include "train/blocks.hpp"

namespace slip {

constexpr int kMaxBlock = 32;       // slots of a block, at most
constexpr size_t kMaxSources = 16;  // whose sums are kept apart; of others only the whole is known

// The same for the documents of one source (an entry of data.tokens).
struct SourceSums {
  double documents = 0, tokens = 0;
  double loss = 0, weight = 0, valid = 0, correct = 0, accepted = 0, blocks = 0;  // as in StepSums

  SourceSums& operator+=(const SourceSums&);
  double mean_loss(LossKind kind) const;
  double accuracy() const;
  double acceptance_length() const;
};

// Plain doubles in a fixed order: the whole struct is all-reduced as an array.
struct StepSums {
  double loss = 0;     // sum of w * nll
  double weight = 0;   // sum of w
  double valid = 0;    // labels that count
  double correct = 0;  // of those, predicted by argmax
  double accepted =
      0;  // sum over blocks of A: leading correct labels (unsupervised slots neither count nor break)
  double blocks = 0;  // blocks with a label that counts
  double tokens = 0;  // context tokens of the rows
  double draft_positions = 0;
  double rows = 0, bad_rows = 0;
  double stop = 0;  // ranks that want to stop
  std::array<double, kMaxBlock> slot_valid{}, slot_correct{}, slot_loss{};
  std::array<SourceSums, kMaxSources> source{};

  std::span<double> values() { return {reinterpret_cast<double*>(this), sizeof(StepSums) / sizeof(double)}; }
  StepSums& operator+=(const StepSums&);
  // What the gradient is divided by: sum of w, or of v for dpace. 0 when nothing counted.
  double denominator(LossKind kind) const { return kind == LossKind::decay ? weight : valid; }
  double mean_loss(LossKind kind) const;
  double accuracy() const;
  double acceptance_length() const;  // mean of A + 1, the bonus token included
};
static_assert(std::is_trivially_copyable_v<StepSums>);

// Adds the blocks of one pass; nll, weight and correct are indexed like valid, source by block (empty: all
// 0).
template <class A>
void add_blocks(StepSums&, int64_t block, std::span<const uint8_t> valid, const A* nll, const A* weight,
                const uint8_t* correct, std::span<const int32_t> source = {});
// Adds a row's documents to their sources.
void add_documents(StepSums&, const RowTokens&);

}  // namespace slip
