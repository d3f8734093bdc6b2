// The backward pass of a whole step against central differences, in double.
#include <gtest/gtest.h>

#include "support/near.hpp"
#include "train/drafter_case.hpp"

namespace slip::testing {
namespace {

// Every published tensor of a whole step, the tied uses of k_proj, v_proj and k_norm included. D-PACE's
// weights are constants of the gradient: they are held while the weights of the drafter move.
TEST(WholeStep, GradientEqualsFiniteDifferences) {
  for (const MaskKind kind : kMaskKinds) {
    for (const LossKind loss : {LossKind::decay, LossKind::dpace}) {
      const DrafterModel m = small_model(kind);
      DrafterRig<double> rig(m);
      rig.rule.kind = loss;
      const RowTokens row = random_row(m, {13, 17}, 7, 0.9);
      const RowBlocks blocks = blocks_at(m, row, {{0, 5, 11}, {3, 9, 10}}, LabelMask::pointwise);
      const Matrix features = random_features(m, 30);
      const Outcome base = rig.run(row, blocks, features);
      ASSERT_GT(base.sums.valid, 10);
      const std::vector<double> held(rig.pass.host_weight.begin(),
                                     rig.pass.host_weight.begin() + blocks.count() * m.block);
      const auto loss_now = [&] {
        rig.run(row, blocks, features, RowMode::evaluate);
        double sum = 0;
        for (size_t i = 0; i < held.size(); ++i) sum += held[i] * rig.pass.host_nll[i];
        return sum;
      };
      EXPECT_NEAR(loss_now(), base.sums.loss, 1e-12 * base.sums.loss);
      for (const ParameterLayout::Entry& e : rig.drafter.layout.entries) {
        const double scale = largest(part(base.grads, e));
        ASSERT_GT(scale, 0.0) << e.name;
        for (int64_t n = 0; n < 4; ++n) {
          const int64_t i = e.offset + (n * 7919 + e.count / 3) % e.count;
          double& w = rig.drafter.weights[i];
          const double was = w, step = 1e-5;
          w = was + step;
          const double above = loss_now();
          w = was - step;
          const double below = loss_now();
          w = was;
          EXPECT_NEAR(base.grads[static_cast<size_t>(i)], (above - below) / (2 * step), 1e-6 * scale + 1e-8)
              << name_of(kind) << ", " << (loss == LossKind::dpace ? "dpace" : "decay") << ", " << e.name
              << "[" << i - e.offset << "]";
        }
      }
    }
  }
}

}  // namespace
}  // namespace slip::testing
