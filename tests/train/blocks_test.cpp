// Anchors and labels, with the vectors of dflash.md 3.1, 3.2 and the cases A1 to A12.
#include "train/blocks.hpp"

#include <gmock/gmock.h>

#include <numeric>

#include "core/check.hpp"

namespace slip {
namespace {

using ::testing::ElementsAre;

std::vector<uint8_t> supervised(size_t length, size_t from) {
  std::vector<uint8_t> mask(length, 0);
  std::fill(mask.begin() + static_cast<int64_t>(from), mask.end(), uint8_t{1});
  return mask;
}

DrafterModel model(int64_t block) {
  DrafterModel m;
  m.block = block;
  m.mask_token = 99;
  return m;
}

// One document whose token i is 10 + i.
RowBlocks blocks_of(const std::vector<uint8_t>& mask, const std::vector<int>& anchors, LabelMask rule,
                    int64_t block = 4, int64_t start = 0) {
  std::vector<int32_t> ids(mask.size());
  std::iota(ids.begin(), ids.end(), 10);
  RowBlocks out;
  add_document(out, model(block), rule, ids, mask, anchors, start);
  return out;
}
int64_t labels(const RowBlocks& b) { return std::accumulate(b.valid.begin(), b.valid.end(), int64_t{0}); }

const std::vector<uint8_t> kGap = {0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 1, 1};

TEST(Anchors, AnchorAndItsFirstLabelAreSupervised) {
  EXPECT_THAT(choose_anchors(kGap, 512, 1, 0, 0), ElementsAre(3, 4, 5, 6, 10));
  EXPECT_THAT(choose_anchors(std::vector<uint8_t>{1, 0, 1, 0, 1}, 512, 1, 0, 0), ElementsAre());
  EXPECT_THAT(choose_anchors(std::vector<uint8_t>{1}, 512, 1, 0, 0), ElementsAre());
  EXPECT_THAT(choose_anchors(std::vector<uint8_t>{}, 512, 1, 0, 0), ElementsAre());
  // T1: two turns
  EXPECT_THAT(
      choose_anchors(std::vector<uint8_t>{0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1}, 512, 1, 0, 0),
      ElementsAre(7, 8, 14));
}

TEST(Anchors, A3ShorterThanTheBlock) {
  const std::vector<uint8_t> mask(3, 1);
  const std::vector<int> anchors = choose_anchors(mask, 16, 1, 0, 0);
  EXPECT_THAT(anchors, ElementsAre(0, 1));
  const RowBlocks b = blocks_of(mask, anchors, LabelMask::prefix);
  EXPECT_EQ(labels(b), 3);
  EXPECT_THAT(b.label, ElementsAre(10, 11, 12, -1, 11, 12, -1, -1));
  EXPECT_THAT(b.valid, ElementsAre(0, 1, 1, 0, 0, 1, 0, 0));
}

TEST(Anchors, A5FewerCandidatesThanAskedFor) {
  const std::vector<uint8_t> mask = supervised(12, 4);
  for (uint64_t seed = 0; seed < 5; ++seed) {
    for (const int64_t count : {7, 16}) {
      const std::vector<int> anchors = choose_anchors(mask, count, seed, 3, 11);
      EXPECT_THAT(anchors, ElementsAre(4, 5, 6, 7, 8, 9, 10)) << seed;
      EXPECT_EQ(labels(blocks_of(mask, anchors, LabelMask::prefix)), 18);
    }
    EXPECT_EQ(choose_anchors(mask, 6, seed, 3, 11).size(), 6u);
  }
}

TEST(Anchors, A12AFunctionOfSeedEpochAndDocumentOnly) {
  const std::vector<uint8_t> mask(101, 1);  // 100 candidates
  const std::vector<int> drawn = choose_anchors(mask, 8, 7, 2, 41);
  ASSERT_EQ(drawn.size(), 8u);
  EXPECT_TRUE(std::is_sorted(drawn.begin(), drawn.end()));
  EXPECT_EQ(std::adjacent_find(drawn.begin(), drawn.end()), drawn.end());
  EXPECT_EQ(choose_anchors(mask, 8, 7, 2, 41), drawn);
  EXPECT_NE(choose_anchors(mask, 8, 7, 3, 41), drawn);  // another epoch
  EXPECT_NE(choose_anchors(mask, 8, 8, 2, 41), drawn);  // another seed
  EXPECT_NE(choose_anchors(mask, 8, 7, 2, 42), drawn);  // another document
  // fewer are the first of more: the draw is by the candidates' own numbers
  const std::vector<int> more = choose_anchors(mask, 30, 7, 2, 41);
  EXPECT_TRUE(std::includes(more.begin(), more.end(), drawn.begin(), drawn.end()));

  // alone in a row, or with three others around it
  const auto document = [](int64_t length) { return std::vector<int32_t>(static_cast<size_t>(length), 5); };
  RowTokens alone{document(101), mask, {101}, {41}};
  RowTokens among{document(151), std::vector<uint8_t>(151, 1), {20, 101, 3, 27}, {7, 41, 9, 3}};
  const RowBlocks a = make_blocks(alone, model(4), LabelMask::prefix, {8, 7, 2});
  const RowBlocks b = make_blocks(among, model(4), LabelMask::prefix, {8, 7, 2});
  EXPECT_EQ(a.anchor, drawn);
  std::vector<int> of_it;
  for (size_t i = 0; i < b.anchor.size(); ++i) {
    if (b.lo[i] == 20) of_it.push_back(b.anchor[i] - 20);
  }
  EXPECT_EQ(of_it, drawn);
  EXPECT_TRUE(std::is_sorted(b.anchor.begin(), b.anchor.end()));
}

// Every candidate has the same chance: 4000 draws of 10 of 40.
TEST(Anchors, AreUniform) {
  const std::vector<uint8_t> mask(41, 1);
  std::vector<int> hits(40, 0);
  for (int64_t document = 0; document < 4000; ++document) {
    for (const int a : choose_anchors(mask, 10, 1, 0, document)) ++hits[static_cast<size_t>(a)];
  }
  // mean 1000, deviation 27: five of them
  for (const int n : hits) EXPECT_NEAR(n, 1000, 140);
}

TEST(Labels, A8StandAtTheirOwnPosition) {
  const RowBlocks b = blocks_of(std::vector<uint8_t>(12, 1), {4}, LabelMask::prefix);
  EXPECT_THAT(b.ids, ElementsAre(14, 99, 99, 99));
  EXPECT_THAT(b.label, ElementsAre(14, 15, 16, 17));
  EXPECT_THAT(b.valid, ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(b.position, ElementsAre(4, 5, 6, 7));
}

TEST(Labels, AfterAGapByRule) {
  const RowBlocks prefix = blocks_of(kGap, {3, 7}, LabelMask::prefix);
  EXPECT_THAT(prefix.valid, ElementsAre(0, 1, 1, 1, 0, 0, 0, 0));
  const RowBlocks pointwise = blocks_of(kGap, {3, 7}, LabelMask::pointwise);
  EXPECT_THAT(pointwise.valid, ElementsAre(0, 1, 1, 1, 0, 0, 0, 1));
  EXPECT_THAT(pointwise.label, ElementsAre(13, 14, 15, 16, 17, 18, 19, 20));
  EXPECT_THAT(pointwise.position, ElementsAre(3, 4, 5, 6, 7, 8, 9, 10));
}

TEST(Labels, EndWithTheirDocument) {
  // 5 tokens from 10 on, then 4 from 50 on; the block at 3 would reach into the second document
  RowBlocks b;
  const std::vector<int32_t> first = {10, 11, 12, 13, 14}, second = {50, 51, 52, 53};
  add_document(b, model(4), LabelMask::pointwise, first, std::vector<uint8_t>(5, 1), std::vector<int>{3}, 0);
  add_document(b, model(4), LabelMask::pointwise, second, std::vector<uint8_t>(4, 1), std::vector<int>{0, 1},
               5);
  EXPECT_THAT(b.label, ElementsAre(13, 14, -1, -1, 50, 51, 52, 53, 51, 52, 53, -1));
  EXPECT_THAT(b.valid, ElementsAre(0, 1, 0, 0, 0, 1, 1, 1, 0, 1, 1, 0));
  EXPECT_THAT(b.position, ElementsAre(3, 4, 5, 6, 0, 1, 2, 3, 1, 2, 3, 4));  // restart with the document
  EXPECT_THAT(b.anchor, ElementsAre(3, 5, 6));                               // in the row
  EXPECT_THAT(b.lo, ElementsAre(0, 5, 5));
  EXPECT_EQ(b.count(), 3);
  EXPECT_EQ(b.context(), 6);
}

TEST(Labels, ARowWithoutSupervisionHasNoBlocks) {
  const RowTokens row{{1, 2, 3}, {0, 0, 0}, {3}, {0}};
  const RowBlocks b = make_blocks(row, model(4), LabelMask::prefix, {8, 1, 0});
  EXPECT_EQ(b.count(), 0);
  EXPECT_EQ(b.context(), 0);
}

TEST(Labels, AnAnchorOutsideItsDocumentIsAFault) {
  EXPECT_THROW(blocks_of(std::vector<uint8_t>(4, 1), {4}, LabelMask::prefix), Error);
  EXPECT_THROW(blocks_of(std::vector<uint8_t>(4, 1), {-1}, LabelMask::prefix), Error);
}

}  // namespace
}  // namespace slip
