// Numerators and counts: acceptance of dflash.md 3.6 and cases A6, A13, A15, E4, G10.
#include "train/sums.hpp"

#include <gtest/gtest.h>

namespace slip {
namespace {

// Blocks with these flags per slot; every label that counts costs `nll`.
StepSums sums_of(int64_t block, const std::vector<uint8_t>& valid, const std::vector<uint8_t>& correct,
                 const std::vector<double>& nll, const LossRule& rule = {.gamma = 0}) {
  std::vector<double> weight(valid.size());
  for (size_t b = 0; b < valid.size(); b += static_cast<size_t>(block)) {
    block_weights<double>(rule, static_cast<int>(block), valid.data() + b, nll.data() + b, weight.data() + b);
  }
  StepSums s;
  add_blocks(s, block, valid, nll.data(), weight.data(), correct.data());
  return s;
}
double accepted(const std::vector<uint8_t>& valid, const std::vector<uint8_t>& correct) {
  const std::vector<double> nll(valid.size(), 1);
  return sums_of(static_cast<int64_t>(valid.size()), valid, correct, nll).acceptance_length();
}

TEST(Acceptance, Examples) {
  EXPECT_EQ(accepted({0, 1, 1, 1}, {0, 1, 1, 0}), 3);
  EXPECT_EQ(accepted({0, 1, 1, 1}, {0, 0, 1, 1}), 1);
  EXPECT_EQ(accepted({0, 1, 0, 1}, {0, 1, 0, 1}), 3);  // a slot without a label does not break the prefix
  EXPECT_EQ(accepted({0, 1, 1, 1, 1}, {0, 1, 1, 0, 1}), 3);  // E4: 2 accepted, advance 3
}

TEST(Acceptance, MeanOverBlocksThatHaveLabels) {
  const StepSums s =
      sums_of(3, {0, 1, 1, 0, 0, 0, 0, 1, 1}, {0, 1, 1, 0, 0, 0, 0, 1, 0}, std::vector<double>(9, 1));
  EXPECT_EQ(s.blocks, 2);
  EXPECT_EQ(s.accepted, 3);
  EXPECT_EQ(s.acceptance_length(), 2.5);
  EXPECT_EQ(s.draft_positions, 9);
  EXPECT_EQ(s.slot_valid[1], 2);
  EXPECT_EQ(s.slot_correct[2], 1);
  EXPECT_EQ(s.slot_loss[2], 2);
  EXPECT_EQ(s.slot_valid[0], 0);
}

TEST(Loss, A13Decay) {
  const StepSums s = sums_of(4, {0, 1, 1, 1}, {0, 0, 0, 0}, {0, 1, 2, 3}, {.gamma = 2});
  EXPECT_NEAR(s.weight, 1.974410, 1e-6);
  EXPECT_NEAR(s.mean_loss(LossKind::decay), 1.679843, 1e-6);
  const auto sum = [](int64_t block, float gamma) {
    std::vector<uint8_t> valid(static_cast<size_t>(block), 1), correct(valid.size(), 0);
    valid[0] = 0;
    return sums_of(block, valid, correct, std::vector<double>(valid.size(), 1), {.gamma = gamma}).weight;
  };
  EXPECT_NEAR(sum(16, 7), 6.630611, 1e-6);
  EXPECT_NEAR(sum(8, 4), 3.735212, 1e-6);
}

TEST(Loss, A15DividedOnceOverAllRanks) {
  StepSums s = sums_of(4, {0, 1, 1, 1}, {0, 1, 1, 1}, {0, 1, 1, 1});
  s += sums_of(4, {0, 1, 0, 0}, {0, 0, 0, 0}, {0, 5, 0, 0});
  EXPECT_EQ(s.mean_loss(LossKind::decay), 2.0);
  EXPECT_EQ(s.denominator(LossKind::decay), 4);
  EXPECT_EQ(s.denominator(LossKind::dpace), 4);
  EXPECT_EQ(s.accuracy(), 0.75);
}

TEST(Loss, A6ARankWithoutLabels) {
  StepSums s = sums_of(4, {0, 1, 1, 1}, {0, 0, 0, 0}, {0, 2, 2, 2});
  s += sums_of(4, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0});
  EXPECT_EQ(s.mean_loss(LossKind::decay), 2.0);
  EXPECT_EQ(s.blocks, 1);
  StepSums nothing = sums_of(4, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0});
  EXPECT_EQ(nothing.denominator(LossKind::decay), 0);
  EXPECT_EQ(nothing.mean_loss(LossKind::decay), 0);
  EXPECT_EQ(nothing.accuracy(), 0);
  EXPECT_EQ(nothing.acceptance_length(), 0);
}

TEST(Loss, G10AccuracyOfTwoRanks) {
  StepSums s;
  for (int rank = 0; rank < 2; ++rank) s += sums_of(5, {0, 1, 1, 1, 1}, {0, 1, 1, 1, 0}, {0, 1, 1, 1, 1});
  EXPECT_EQ(s.accuracy(), 0.75);
  EXPECT_EQ(s.valid, 8);
}

TEST(Loss, DpaceDividesByTheNumberOfLabels) {
  // q = .8, .5, .9, alpha .5
  const std::vector<double> nll = {0, -std::log(0.8), -std::log(0.5), -std::log(0.9)};
  const StepSums s = sums_of(4, {0, 1, 1, 1}, {0, 0, 0, 0}, nll, {.kind = LossKind::dpace, .alpha = 0.5f});
  EXPECT_NEAR(s.loss, 1.474459, 1e-6);
  EXPECT_NEAR(s.weight, 2.21625 + 1.31625 + 0.64125, 1e-9);
  EXPECT_NEAR(s.mean_loss(LossKind::dpace), 1.474459 / 3, 1e-6);
}

// The parts of the sources make up the whole; those past the last that is kept apart do not disturb.
TEST(Sums, BySource) {
  const std::vector<uint8_t> valid = {0, 1, 1, 0, 1, 1, 0, 1, 0, 0, 1, 1},
                             correct = {0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1};
  const std::vector<double> nll = {0, 1, 2, 0, 3, 4, 0, 5, 0, 0, 6, 7}, weight(12, 0.5);
  StepSums s, plain;
  add_blocks(s, 3, valid, nll.data(), weight.data(), correct.data(), std::vector<int32_t>{1, 0, 1, 20});
  add_blocks(plain, 3, valid, nll.data(), weight.data(), correct.data());
  EXPECT_EQ(s.loss, plain.loss);
  EXPECT_EQ(s.blocks, 4);
  EXPECT_EQ(s.source[1].valid, 3);
  EXPECT_EQ(s.source[1].loss, 4);
  EXPECT_EQ(s.source[1].mean_loss(LossKind::decay), 8.0 / 3);
  EXPECT_EQ(s.source[1].mean_loss(LossKind::dpace), 4.0 / 3);
  EXPECT_EQ(s.source[1].accuracy(), 1.0 / 3);
  EXPECT_EQ(s.source[1].acceptance_length(), 1.5);
  EXPECT_EQ(s.source[0].acceptance_length(), 3);
  EXPECT_EQ(s.source[2].acceptance_length(), 0);
  EXPECT_EQ(plain.source[0].loss, plain.loss);
  add_documents(s, {{}, {}, {7, 9, 4}, {0, 1, 2}, {1, 0, 1}, {0, 0, 0}});
  EXPECT_EQ(s.source[1].documents, 2);
  EXPECT_EQ(s.source[1].tokens, 11);
  EXPECT_EQ(s.source[0].tokens, 9);
}

TEST(Sums, EveryFieldIsAdded) {
  StepSums a, b;
  double next = 1;
  for (double& x : a.values()) x = next++;
  for (double& x : b.values()) x = 1000 * next++;
  StepSums c = a;
  c += b;
  for (size_t i = 0; i < c.values().size(); ++i) EXPECT_EQ(c.values()[i], a.values()[i] + b.values()[i]);
  EXPECT_EQ(c.slot_loss[kMaxBlock - 1], a.slot_loss[kMaxBlock - 1] + b.slot_loss[kMaxBlock - 1]);
}

}  // namespace
}  // namespace slip
