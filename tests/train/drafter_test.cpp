// What the method promises of one row (dflash.md 10): training equals decoding block by block, blocks do not
// see each other or what comes after their anchor, packing changes nothing, and neither do chunks and passes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "support/kernel_test.hpp"
#include "train/drafter_case.hpp"

namespace slip::testing {
namespace {

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return !a.empty() && a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}
Matrix first_rows(const Matrix& m, int64_t rows) {
  return Matrix(rows, m.cols, {m.values.begin(), m.values.begin() + rows * m.cols});
}
Matrix rows_after(const Matrix& m, int64_t first) {
  return Matrix(m.rows - first, m.cols, {m.values.begin() + first * m.cols, m.values.end()});
}
// The sums and gradients of two rows equal those of their parts.
::testing::AssertionResult adds_up(const Outcome& whole, const Outcome& a, const Outcome& b,
                                   const Tolerance& tol) {
  StepSums sums = a.sums, all = whole.sums;
  sums += b.sums;
  const std::span<double> got = all.values(), want = sums.values();
  if (auto ok = near(got, want, tol.abs, tol.rel); !ok) return ok << " (sums)";
  std::vector<double> grads = a.grads;
  for (size_t i = 0; i < grads.size(); ++i) grads[i] += b.grads[i];
  return near(whole.grads, grads, tol.abs * largest(grads), tol.rel) << " (gradients)";
}

template <class B> class DrafterTest : public ::testing::Test {
 public:
  using T = typename B::Type;
  using Rig = DrafterRig<T, B::kDevice>;
};
TYPED_TEST_SUITE(DrafterTest, BackEnds, BackEndName);

// What is said to be ready is what the row ends with, bit by bit, and the parts are the whole: another GPU
// may have summed them meanwhile.
TYPED_TEST(DrafterTest, GradientsThatAreReadyStayAsTheyAre) {
  const DrafterModel m = small_model(MaskKind::mixed);
  for (const int64_t blocks_per_pass : {64, 3}) {
    typename TestFixture::Rig rig(m, 64, blocks_per_pass);
    const RowTokens row = random_row(m, {30});
    const Matrix features = random_features(m, 30);
    const RowBlocks blocks = blocks_at(m, row, {{0, 1, 3, 4, 11, 17, 28}});
    std::vector<int64_t> begins;
    std::vector<double> early(static_cast<size_t>(rig.drafter.layout.count), std::nan(""));
    const Outcome all = rig.run(row, blocks, features, RowMode::train, [&](int64_t begin) {
      const int64_t end = begins.empty() ? rig.drafter.layout.count : begins.back();
      const std::vector<double> now = rig.grads();
      std::copy(now.begin() + begin, now.begin() + end, early.begin() + begin);
      begins.push_back(begin);
    });
    const std::vector<int64_t> parts = gradient_parts(m, rig.drafter.layout);
    for (const int64_t begin : parts) EXPECT_EQ(std::count(begins.begin(), begins.end(), begin), 1) << begin;
    EXPECT_EQ(begins.size(), parts.size() + static_cast<size_t>(m.layers) - 1);
    EXPECT_TRUE(std::is_sorted(parts.rbegin(), parts.rend()));
    EXPECT_TRUE(std::is_sorted(begins.rbegin(), begins.rend()));
    EXPECT_EQ(begins.back(), 0);
    EXPECT_TRUE(same_bits(early, all.grads));
    for (const ParameterLayout::Entry& e : rig.drafter.layout.entries)
      EXPECT_TRUE(same_bits(part(early, e), part(all.grads, e))) << e.name;
  }
}

// A block of a row with many equals the block alone, with the features that exist when it is drafted: those
// of the tokens before its anchor.
TYPED_TEST(DrafterTest, TrainingEqualsSingleBlockInference) {
  for (const MaskKind kind : kMaskKinds) {
    SCOPED_TRACE(name_of(kind));
    const DrafterModel m = small_model(kind);
    typename TestFixture::Rig rig(m);
    const RowTokens row = random_row(m, {30});
    const Matrix features = random_features(m, 30);
    const std::vector<int> anchors = {0, 1, 3, 4, 11, 17, 28};
    const Outcome all = rig.run(row, blocks_at(m, row, {anchors}), features, RowMode::evaluate);
    for (size_t i = 0; i < anchors.size(); ++i) {
      const Outcome one = rig.run(row, blocks_at(m, row, {{anchors[i]}}), first_rows(features, anchors[i]),
                                  RowMode::evaluate);
      EXPECT_TRUE(near(block_of(all, m, i), one.hidden, kTol<typename TestFixture::T>))
          << "anchor " << anchors[i];
    }
  }
}

TYPED_TEST(DrafterTest, ABlockOfAPackedRowEqualsItsDocumentAlone) {
  for (const MaskKind kind : kMaskKinds) {
    SCOPED_TRACE(name_of(kind));
    const DrafterModel m = small_model(kind);
    typename TestFixture::Rig rig(m);
    const RowTokens row = random_row(m, {9, 2, 19});
    const Matrix features = random_features(m, 30);
    const std::vector<std::vector<int>> anchors = {{2, 7}, {0}, {0, 5, 16}};
    const Outcome all = rig.run(row, blocks_at(m, row, anchors), features, RowMode::evaluate);
    const int64_t starts[] = {0, 9, 11};
    size_t block = 0;
    for (size_t d = 0; d < 3; ++d) {
      RowTokens alone;
      alone.lengths = {row.lengths[d]};
      alone.ids.assign(row.ids.begin() + starts[d], row.ids.begin() + starts[d] + row.lengths[d]);
      alone.mask.assign(row.mask.begin() + starts[d], row.mask.begin() + starts[d] + row.lengths[d]);
      for (const int a : anchors[d]) {
        const Matrix seen = first_rows(rows_after(features, starts[d]), a);
        const Outcome one = rig.run(alone, blocks_at(m, alone, {{a}}), seen, RowMode::evaluate);
        EXPECT_TRUE(near(block_of(all, m, block++), one.hidden, kTol<typename TestFixture::T>))
            << "document " << d << ", anchor " << a;
      }
    }
  }
}

// A9: overlapping blocks. 72 pairs are visible, 40 of them of the context.
TYPED_TEST(DrafterTest, BlocksAreIndependentToTheBit) {
  const DrafterModel m = small_model(MaskKind::full);
  typename TestFixture::Rig rig(m);
  const RowTokens row = random_row(m, {12});
  const RowBlocks blocks = blocks_at(m, row, {{4, 6}});
  const Matrix features = random_features(m, 12);
  const Outcome before = rig.run(row, blocks, features);
  int64_t pairs = 0;
  for (int64_t t = 0; t < 12; ++t) {
    Matrix other = features;
    for (int64_t c = 0; c < other.cols; ++c) other.at(t, c) += 1 + static_cast<double>(c % 3);
    const Outcome after = rig.run(row, blocks, other);
    const bool first = !same_bits(block_of(before, m, 0), block_of(after, m, 0));
    const bool second = !same_bits(block_of(before, m, 1), block_of(after, m, 1));
    EXPECT_EQ(first, t < 4) << "token " << t;
    EXPECT_EQ(second, t < 6) << "token " << t;
    EXPECT_EQ(same_bits(before.grads, after.grads), t >= 6) << "token " << t;
    pairs += m.block * (first + second);
  }
  EXPECT_EQ(pairs + 2 * m.block * m.block, 72);
  // the same call gives the same bits
  EXPECT_TRUE(same_bits(before.grads, rig.run(row, blocks, features).grads));
}

TYPED_TEST(DrafterTest, ChangesAtOrAfterAnAnchorLeaveItsBlockAlone) {
  for (const MaskKind kind : kMaskKinds) {
    SCOPED_TRACE(name_of(kind));
    const DrafterModel m = small_model(kind);
    typename TestFixture::Rig rig(m);
    const RowTokens row = random_row(m, {13, 17});
    const std::vector<std::vector<int>> anchors = {{1, 8}, {0, 4, 9, 15}};
    const RowBlocks blocks = blocks_at(m, row, anchors);
    const Matrix features = random_features(m, 30), others = random_features(m, 30, 2);
    const Outcome before = rig.run(row, blocks, features, RowMode::evaluate);
    for (size_t i = 0; i < blocks.anchor.size(); ++i) {
      Matrix after = features;  // other features for every token that the block may not see
      for (int64_t t = 0; t < 30; ++t) {
        if (t >= blocks.lo[i] && t < blocks.anchor[i]) continue;
        for (int64_t c = 0; c < after.cols; ++c) after.at(t, c) = others.at(t, c);
      }
      const Outcome changed = rig.run(row, blocks, after, RowMode::evaluate);
      EXPECT_TRUE(same_bits(block_of(before, m, i), block_of(changed, m, i))) << "block " << i;
    }
  }
}

TYPED_TEST(DrafterTest, AnotherBlockChangesNothing) {
  const DrafterModel m = small_model(MaskKind::mixed);
  typename TestFixture::Rig rig(m);
  const RowTokens row = random_row(m, {30});
  const Matrix features = random_features(m, 30);
  const Outcome two = rig.run(row, blocks_at(m, row, {{5, 20}}), features);
  const Outcome three = rig.run(row, blocks_at(m, row, {{5, 6, 20}}), features);
  EXPECT_TRUE(near(block_of(three, m, 0), block_of(two, m, 0), kTol<typename TestFixture::T>));
  EXPECT_TRUE(near(block_of(three, m, 2), block_of(two, m, 1), kTol<typename TestFixture::T>));
  const Outcome one = rig.run(row, blocks_at(m, row, {{6}}), features);
  EXPECT_TRUE(adds_up(three, two, one, kTol<typename TestFixture::T>));
}

TYPED_TEST(DrafterTest, FeaturesFromTheLastAnchorOnAreNeverRead) {
  for (const MaskKind kind : kMaskKinds) {
    SCOPED_TRACE(name_of(kind));
    const DrafterModel m = small_model(kind);
    typename TestFixture::Rig rig(m);
    const RowTokens row = random_row(m, {30});
    const Matrix features = random_features(m, 30);
    const RowBlocks blocks = blocks_at(m, row, {{7, 19}});
    EXPECT_EQ(blocks.context(), 19);
    const Outcome all = rig.run(row, blocks, features);
    const Outcome cut = rig.run(row, blocks, first_rows(features, 19));  // NaN from there on
    EXPECT_TRUE(same_bits(all.grads, cut.grads));
    EXPECT_TRUE(same_bits(all.hidden, cut.hidden));
    EXPECT_GT(largest(part(all.grads, rig.drafter.layout.at("fc.weight"))), 0.0);
    EXPECT_TRUE(std::isfinite(largest(all.grads)));
    // and one token fewer is one too few
    EXPECT_FALSE(std::isfinite(rig.run(row, blocks, first_rows(features, 18)).sums.loss));
  }
}

TYPED_TEST(DrafterTest, WithoutContextABlockSeesItself) {
  for (const MaskKind kind : kMaskKinds) {
    SCOPED_TRACE(name_of(kind));
    const DrafterModel m = small_model(kind);
    typename TestFixture::Rig rig(m);
    const RowTokens row = random_row(m, {10});
    const RowBlocks blocks = blocks_at(m, row, {{0}});
    EXPECT_EQ(blocks.context(), 0);
    const Outcome one = rig.run(row, blocks, Matrix(0, 24));
    EXPECT_EQ(one.sums.valid, 3);
    EXPECT_GT(largest(one.grads), 0.0);
    EXPECT_TRUE(std::isfinite(largest(one.grads)) && std::isfinite(largest(one.hidden)));
    EXPECT_EQ(largest(part(one.grads, rig.drafter.layout.at("fc.weight"))), 0.0);
    EXPECT_EQ(largest(part(one.grads, rig.drafter.layout.at("hidden_norm.weight"))), 0.0);
    const Outcome two = rig.run(row, blocks_at(m, row, {{0, 6}}), random_features(m, 10));
    EXPECT_TRUE(near(block_of(two, m, 0), one.hidden, kTol<typename TestFixture::T>));
  }
}

TYPED_TEST(DrafterTest, APackedRowEqualsItsDocumentsApart) {
  for (const MaskKind kind : kMaskKinds) {
    for (const LossKind loss : {LossKind::decay, LossKind::dpace}) {
      SCOPED_TRACE(name_of(kind));
      const DrafterModel m = small_model(kind);
      typename TestFixture::Rig rig(m);
      rig.rule.kind = loss;
      // 0.7: gaps in the labels. The blocks at 10 and 15 reach past the end of their documents.
      const RowTokens both = random_row(m, {12, 18}, 5, 0.7);
      RowTokens a, b;
      a.lengths = {12}, b.lengths = {18};
      a.ids.assign(both.ids.begin(), both.ids.begin() + 12),
          b.ids.assign(both.ids.begin() + 12, both.ids.end());
      a.mask.assign(both.mask.begin(), both.mask.begin() + 12),
          b.mask.assign(both.mask.begin() + 12, both.mask.end());
      const Matrix features = random_features(m, 30);
      const std::vector<int> in_a = {3, 10}, in_b = {0, 6, 15};
      const Outcome packed = rig.run(both, blocks_at(m, both, {in_a, in_b}, LabelMask::pointwise), features);
      const Outcome one = rig.run(a, blocks_at(m, a, {in_a}, LabelMask::pointwise), first_rows(features, 12));
      const Outcome two = rig.run(b, blocks_at(m, b, {in_b}, LabelMask::pointwise), rows_after(features, 12));
      EXPECT_GT(packed.sums.valid, 4);
      EXPECT_TRUE(adds_up(packed, one, two, kTol<typename TestFixture::T>));
    }
  }
}

TYPED_TEST(DrafterTest, PassesOfBlocksChangeNothing) {
  for (const MaskKind kind : kMaskKinds) {
    SCOPED_TRACE(name_of(kind));
    const DrafterModel m = small_model(kind);
    const RowTokens row = random_row(m, {14, 26});
    const Matrix features = random_features(m, 40);
    typename TestFixture::Rig whole(m);
    const RowBlocks blocks = blocks_at(m, row, {{0, 4, 9, 12}, {2, 3, 8, 20}});
    const Outcome all = whole.run(row, blocks, features);
    for (const int64_t blocks_per_pass : {1, 3, 8}) {
      typename TestFixture::Rig rig(m, 64, blocks_per_pass);
      const Outcome some = rig.run(row, blocks, features);
      StepSums got = some.sums, want = all.sums;
      EXPECT_TRUE(near(got.values(), want.values(), kTol<typename TestFixture::T>.abs,
                       kTol<typename TestFixture::T>.rel))
          << blocks_per_pass;
      EXPECT_TRUE(near(some.hidden, all.hidden, kTol<typename TestFixture::T>)) << blocks_per_pass;
      for (const ParameterLayout::Entry& e : rig.drafter.layout.entries) {
        EXPECT_LE(relative_error(part(some.grads, e), part(all.grads, e)),
                  2 * kTol<typename TestFixture::T>.norm)
            << e.name << ", passes of " << blocks_per_pass;
      }
    }
  }
}

TYPED_TEST(DrafterTest, ChunksOfTheHeadChangeNothing) {
  const DrafterModel m = small_model(MaskKind::mixed);
  typename TestFixture::Rig rig(m);
  const RowTokens row = random_row(m, {40}, 3, 0.8);
  const RowBlocks blocks = blocks_at(m, row, {{0, 3, 9, 12, 20, 29, 38}}, LabelMask::pointwise);
  const Matrix features = random_features(m, 40);
  const Outcome whole = rig.run(row, blocks, features);
  for (const int64_t rows : {4, 5, 12}) {
    rig.pass.chunk_rows = rows;
    const Outcome chunked = rig.run(row, blocks, features);
    StepSums got = chunked.sums, want = whole.sums;
    EXPECT_TRUE(near(got.values(), want.values(), kTol<typename TestFixture::T>.abs,
                     kTol<typename TestFixture::T>.rel))
        << rows;
    EXPECT_TRUE(near(chunked.grads, whole.grads, kTol<typename TestFixture::T>.abs * largest(whole.grads),
                     kTol<typename TestFixture::T>.rel))
        << rows;
  }
}

TYPED_TEST(DrafterTest, EvaluationLeavesTheGradientsAlone) {
  const DrafterModel m = small_model(MaskKind::mixed);
  typename TestFixture::Rig rig(m);
  const RowTokens row = random_row(m, {20});
  const RowBlocks blocks = blocks_at(m, row, {{3, 9}});
  const Matrix features = random_features(m, 20);
  const Outcome trained = rig.run(row, blocks, features),
                evaluated = rig.run(row, blocks, features, RowMode::evaluate);
  EXPECT_EQ(largest(evaluated.grads), 0.0);
  EXPECT_EQ(trained.sums.loss, evaluated.sums.loss);
  EXPECT_TRUE(same_bits(trained.hidden, evaluated.hidden));
}

// Features as they arrive: bf16, one tap after the other, a slot longer than what is read.
TYPED_TEST(DrafterTest, ARowFromItsSlot) {
  const DrafterModel m = small_model(MaskKind::mixed);
  typename TestFixture::Rig rig(m);
  const RowTokens row = random_row(m, {20});
  const RowBlocks blocks = blocks_at(m, row, {{3, 9}});
  const Matrix features = random_features(m, 20);
  std::vector<Bf16> slot;
  for (int64_t k = 0; k < 2; ++k) {
    for (int64_t t = 0; t < 20; ++t) {
      for (int64_t c = 0; c < m.hidden; ++c)
        slot.push_back(make_element<Bf16>(features.at(t, k * m.hidden + c)));
    }
  }
  const Outcome want = rig.run(row, blocks, features);
  EXPECT_TRUE(same_bits(want.grads, rig.run_slot(row, blocks, slot)->grads));
  const auto at = [&](int64_t tap, int64_t token) {
    return static_cast<size_t>((tap * 20 + token) * m.hidden + 5);
  };
  slot[at(1, 9)] = make_element<Bf16>(std::nan(""));  // the last anchor: nobody reads that
  EXPECT_TRUE(same_bits(want.grads, rig.run_slot(row, blocks, slot)->grads));
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    std::vector<Bf16> poisoned = slot;
    poisoned[at(1, 8)] = make_element<Bf16>(bad);
    EXPECT_FALSE(rig.run_slot(row, blocks, poisoned)) << bad;
    EXPECT_EQ(largest(rig.grads()), 0) << bad;
  }
}

}  // namespace
}  // namespace slip::testing
