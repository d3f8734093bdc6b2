// Weights of a block's slots by hand, and the gradient of the head loss against finite differences.
#include "support/finite_difference.hpp"
#include "support/head_loss_case.hpp"

namespace slip::testing {
namespace {

template <class A>
std::vector<double> weights(const LossRule& rule, std::vector<uint8_t> valid, std::vector<A> nll = {}) {
  nll.resize(valid.size());
  std::vector<A> w(valid.size(), A(NAN));
  block_weights(rule, static_cast<int>(valid.size()), valid.data(), nll.data(), w.data());
  return {w.begin(), w.end()};
}
double sum(const std::vector<double>& v) {
  double s = 0;
  for (const double x : v) s += x;
  return s;
}
LossRule decay(float gamma) { return {LossKind::decay, gamma, 0}; }
constexpr LossRule kDpace{LossKind::dpace, 0, 0.5f};

TEST(DecayWeights, Table) {
  const std::vector<double> b16 = weights<double>(decay(7), std::vector<uint8_t>(16, 1));
  EXPECT_EQ(b16[0], 0);
  EXPECT_EQ(b16[1], 1);
  EXPECT_TRUE(near(std::vector<double>{b16[2], b16[3], b16[8], b16[15]},
                   std::vector<double>{0.866878, 0.751477, 0.367879, 0.135335}, 5e-7, 0));
  EXPECT_NEAR(sum(b16), 6.630611, 5e-7);
  EXPECT_NEAR(sum(weights<double>(decay(4), std::vector<uint8_t>(8, 1))), 3.735212, 5e-7);
  EXPECT_NEAR(sum(weights<float>(decay(4), std::vector<uint8_t>(8, 1))), 3.735212, 1e-6);
  EXPECT_EQ(weights<double>(decay(0), {1, 1, 0, 1}), (std::vector<double>{0, 1, 0, 1}));
}

TEST(DecayWeights, SmallCase) {
  const std::vector<double> w = weights<double>(decay(2), {1, 1, 1, 1});
  EXPECT_NEAR((w[1] * 1 + w[2] * 2 + w[3] * 3) / sum(w), 1.679843, 5e-7);
}

TEST(DecayWeights, GapsKeepTheirPlace) {
  EXPECT_TRUE(
      near(weights<double>(decay(7), {0, 1, 1, 1}), std::vector<double>{0, 1, 0.866878, 0.751477}, 5e-7, 0));
  EXPECT_TRUE(near(weights<double>(decay(7), {0, 0, 0, 1}), std::vector<double>{0, 0, 0, 0.751477}, 5e-7, 0));
  EXPECT_EQ(weights<double>(decay(7), {0, 0, 0, 0}), std::vector<double>(4, 0));
}

template <class A> void check_dpace(double tolerance) {
  const std::vector<A> nll = {A(99), static_cast<A>(-std::log(0.8)), static_cast<A>(-std::log(0.5)),
                              static_cast<A>(-std::log(0.9))};
  const std::vector<double> w = weights<A>(kDpace, {0, 1, 1, 1}, nll);
  EXPECT_TRUE(near(w, std::vector<double>{0, 2.21625, 1.31625, 0.64125}, tolerance, 0));
  double loss = 0;
  for (size_t j = 1; j < 4; ++j) loss += w[j] * static_cast<double>(nll[j]);
  EXPECT_NEAR(loss, 1.474459, 1e-6);
  EXPECT_TRUE(
      near(weights<A>(kDpace, {0, 1, 0, 1}, nll), std::vector<double>{0, 1.755, 0, 0.855}, tolerance, 0));
  EXPECT_EQ(weights<A>(kDpace, {1, 0, 0, 0}, nll), std::vector<double>(4, 0)) << "slot 0 never counts";
}
TEST(DpaceWeights, VectorsOfTheSpecification) {
  check_dpace<double>(1e-12);
  check_dpace<float>(1e-6);
}

// dhidden is the gradient of sum(w * nll) with the weights held constant.
TEST(HeadLossGradient, EqualsFiniteDifferences) {
  for (const LossRule& rule : {decay(3), kDpace}) {
    LossProblem p = make_loss_problem<double>(3, 4, 8, 12, rule, 3);
    const LossAnswer at = reference(p);
    const auto loss = [&] { return dot(at.weight, reference(p).nll); };
    const Matrix want = finite_difference(p.hidden, loss);
    EXPECT_TRUE(near(at.dhidden.values, want.values, kDifferenceAbs, kDifferenceRel));
    const Queue cpu;
    EXPECT_TRUE(
        near(LossRun<double>(p, 4, cpu).dhidden.values(), want.values, kDifferenceAbs, kDifferenceRel));
  }
}

// Two logits 0 and ln 3: probabilities 1/4 and 3/4, by hand.
TEST(HeadLossReference, TwoWords) {
  const double ln3 = std::log(3.0);
  const LossProblem p{2, decay(0), Matrix(2, 1, {7, 1}), Matrix(2, 1, {0, ln3}), {-1, 0}, {0, 1}};
  const LossAnswer a = reference(p);
  EXPECT_NEAR(a.nll.at(0, 1), std::log(4.0), 1e-12);
  EXPECT_EQ(a.correct, (std::vector<uint8_t>{0, 0}));
  EXPECT_TRUE(near(a.dhidden.values, std::vector<double>{0, 0.75 * ln3}, 1e-12, 0));
}

}  // namespace
}  // namespace slip::testing
