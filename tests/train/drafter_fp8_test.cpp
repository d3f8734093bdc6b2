// A row with the drafter's products in fp8: near what the working type gives, the same twice, and nothing
// left over from rows before. Sizes are multiples of 16, as cuBLASLt asks.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/gpu_required.hpp"
#include "support/kernel_test.hpp"
#include "train/drafter_case.hpp"

namespace slip::testing {
namespace {

DrafterModel model() {
  DrafterModel m = small_model(MaskKind::mixed);
  m.intermediate = 32, m.vocab = 48, m.mask_token = 47;
  return m;
}

struct Row {
  RowTokens tokens;
  RowBlocks blocks;
  Matrix features;
};
// 7 blocks of 4: 28 draft tokens and 27 of context, no multiples of 16.
Row long_row(const DrafterModel& m) {
  Row row{random_row(m, {13, 17}, 7, 0.9), {}, random_features(m, 30)};
  row.blocks = blocks_at(m, row.tokens, {{0, 5, 9, 11}, {3, 9, 14}}, LabelMask::pointwise);
  return row;
}
Row short_row(const DrafterModel& m) {
  Row row{random_row(m, {11}, 8), {}, random_features(m, 11, 3)};
  row.blocks = blocks_at(m, row.tokens, {{2, 7, 8}}, LabelMask::pointwise);
  return row;
}

template <class B> class DrafterFp8Test : public ::testing::Test {
  void SetUp() override { skip_without_fp8(B::kDevice); }

 public:
  using T = typename B::Type;
  using Rig = DrafterRig<T, B::kDevice>;
  static Outcome run(Rig& rig, const Row& row, RowMode mode = RowMode::train) {
    return rig.run(row.tokens, row.blocks, row.features, mode);
  }
};
TYPED_TEST_SUITE(DrafterFp8Test, BackEnds, BackEndName);

TYPED_TEST(DrafterFp8Test, EveryGradientIsNear) {
  const DrafterModel m = model();
  const Row row = long_row(m);
  for (const bool head : {false, true}) {
    typename TestFixture::Rig rig(m, 64, 64, true, head), plain(m);
    // The rig's weights make a network that doubles every rounding; these let one pass as it is. Gains have
    // signs, so that what one norm gives is not nearly what another gives.
    std::vector<float> weights(static_cast<size_t>(rig.drafter.layout.count));
    for (const ParameterLayout::Entry& e : rig.drafter.layout.entries) {
      const double scale = 0.4 / std::sqrt(static_cast<double>(e.shape.back()));
      for (int64_t i = 0; i < e.count; ++i) {
        const double x = random_normal(17, fnv1a64(e.name), static_cast<uint64_t>(i));
        weights[static_cast<size_t>(e.offset + i)] =
            e.shape.size() == 1 ? (x < 0 ? -1.0f : 1.0f) : round_bf16(static_cast<float>(scale * x));
      }
    }
    const TestQueue queue = make_queue(TypeParam::kDevice);
    set_weights(rig.drafter, weights, queue.get());
    set_weights(plain.drafter, weights, queue.get());
    synchronize(queue.get());
    const Outcome got = this->run(rig, row), want = this->run(plain, row);
    EXPECT_NE(got.sums.loss, want.sums.loss);
    EXPECT_NEAR(got.sums.loss / want.sums.loss, 1, 0.03);
    for (const ParameterLayout::Entry& e : rig.drafter.layout.entries) {
      const double error = relative_error(part(got.grads, e), part(want.grads, e));
      EXPECT_LT(error, 0.35) << e.name << (head ? ", fp8_head" : "");  // another operand: above 1
      EXPECT_GT(error, 0.003) << e.name << (head ? ", fp8_head" : "");
    }
  }
}

TYPED_TEST(DrafterFp8Test, TheSameTwiceAndAfterALongerRow) {
  const DrafterModel m = model();
  typename TestFixture::Rig rig(m, 64, 64, true, true), fresh(m, 64, 64, true, true);
  const Outcome once = this->run(rig, long_row(m)), twice = this->run(rig, long_row(m));
  EXPECT_EQ(once.grads, twice.grads);
  EXPECT_EQ(once.hidden, twice.hidden);
  const Outcome after = this->run(rig, short_row(m)), alone = this->run(fresh, short_row(m));
  EXPECT_EQ(after.grads, alone.grads);
  EXPECT_EQ(after.hidden, alone.hidden);
  EXPECT_EQ(after.sums.loss, alone.sums.loss);
}

// A server computes in the working type, and so does evaluation.
TYPED_TEST(DrafterFp8Test, EvaluationComputesInTheWorkingType) {
  const DrafterModel m = model();
  typename TestFixture::Rig rig(m, 64, 64, true, true), plain(m);
  this->run(rig, long_row(m));
  const Outcome got = this->run(rig, long_row(m), RowMode::evaluate),
                want = this->run(plain, long_row(m), RowMode::evaluate);
  EXPECT_EQ(got.hidden, want.hidden);
  EXPECT_EQ(got.sums.loss, want.sums.loss);
}

// Columns are scaled pass by pass, so passes are near each other, no longer the same sums.
TYPED_TEST(DrafterFp8Test, PassesOfBlocks) {
  const DrafterModel m = model();
  typename TestFixture::Rig whole(m, 64, 64, true), passes(m, 64, 3, true);
  const Outcome a = this->run(whole, long_row(m)), b = this->run(passes, long_row(m));
  EXPECT_NEAR(a.sums.loss / b.sums.loss, 1, 1e-6);  // forward a row has its own scale
  EXPECT_LT(relative_error(b.grads, a.grads), 0.06);
}

TYPED_TEST(DrafterFp8Test, QuantizedWeightsFollowTheWeights) {
  const DrafterModel m = model();
  typename TestFixture::Rig rig(m, 64, 64, true);
  const Outcome before = this->run(rig, long_row(m));
  std::vector<float> other(static_cast<size_t>(rig.drafter.layout.count), 0.125f);
  const TestQueue queue = make_queue(TypeParam::kDevice);
  set_weights(rig.drafter, other, queue.get());
  synchronize(queue.get());
  const Outcome after = this->run(rig, long_row(m));
  EXPECT_NE(after.hidden, before.hidden);
  typename TestFixture::Rig plain(m);
  set_weights(plain.drafter, other, queue.get());
  synchronize(queue.get());
  EXPECT_LT(relative_error(after.hidden, this->run(plain, long_row(m)).hidden), 0.05);
}

TYPED_TEST(DrafterFp8Test, NanIsNoticed) {
  const DrafterModel m = model();
  typename TestFixture::Rig rig(m, 64, 64, true);
  Row row = long_row(m);
  row.features.at(2, 1) = std::nan("");
  const Outcome out = this->run(rig, row);
  EXPECT_FALSE(std::isfinite(out.sums.loss));
  EXPECT_TRUE(std::any_of(out.grads.begin(), out.grads.end(), [](double g) { return std::isnan(g); }));
}

}  // namespace
}  // namespace slip::testing
