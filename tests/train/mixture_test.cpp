// What an epoch draws: counts by weight, exactness over epochs, and bits that stay where there are no
// weights.
#include "train/mixture.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/check.hpp"
#include "train/blocks.hpp"
#include "train/rows.hpp"

namespace slip {
namespace {

using Documents = std::vector<TokenCorpus::Document>;

Source source(double weight) { return {"x", static_cast<int64_t>(weight * kWeightOnce + 0.5), {}}; }

// `counts` documents of each source; ids run on.
Documents documents(const std::vector<int64_t>& counts) {
  Documents out;
  for (size_t s = 0; s < counts.size(); ++s) {
    for (int64_t i = 0; i < counts[s]; ++i)
      out.push_back({static_cast<int64_t>(out.size()), 10 + i % 7, static_cast<int32_t>(s)});
  }
  return out;
}
// id -> how often
std::map<int64_t, int> times(const Documents& all) {
  std::map<int64_t, int> out;
  for (const auto& d : all) ++out[d.id];
  return out;
}
std::set<int64_t> ids(const Documents& all) {
  std::set<int64_t> out;
  for (const auto& d : all) out.insert(d.id);
  return out;
}

TEST(Mixture, WithoutWeightsEveryDocumentAsItIs) {
  const Documents all = documents({5, 4});
  const std::vector<Source> once = {source(1), source(1)};
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const Documents got = drawn(all, once, 3, epoch);
    ASSERT_EQ(got.size(), all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(got[i].id, all[i].id);
      EXPECT_EQ(got[i].copy, 0);
    }
  }
  // beside a weight, the documents of weight 1 still come once, as copy 0
  const Documents got = drawn(all, std::vector<Source>{source(1), source(2.5)}, 3, 1);
  int found = 0;
  for (const auto& d : got) {
    if (d.source != 0) continue;
    EXPECT_EQ(d.copy, 0);
    ++found;
  }
  EXPECT_EQ(found, 5);
}

TEST(Mixture, TwoIsEveryDocumentTwice) {
  const Documents all = documents({6, 5});
  const Documents got = drawn(all, std::vector<Source>{source(2), source(1)}, 1, 4);
  EXPECT_EQ(got.size(), 17u);
  std::set<std::pair<int64_t, int>> seen;
  for (const auto& d : got) {
    EXPECT_TRUE(seen.emplace(d.id, d.copy).second);
    EXPECT_LT(d.copy, d.source == 0 ? 2 : 1);
  }
}

TEST(Mixture, AHalfIsTheOtherHalfNextTime) {
  const Documents all = documents({10});
  const std::vector<Source> half = {source(0.5)};
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const std::set<int64_t> first = ids(drawn(all, half, seed, 0)), second = ids(drawn(all, half, seed, 1));
    EXPECT_EQ(first.size(), 5u);
    EXPECT_EQ(second.size(), 5u);
    for (const int64_t id : first) EXPECT_FALSE(second.contains(id));
    EXPECT_EQ(ids(drawn(all, half, seed, 2)), first);
  }
  EXPECT_NE(ids(drawn(all, half, 0, 0)), ids(drawn(all, half, 1, 0)));
}

// Whatever the weight: each epoch takes what it should, up to one document, and no document is ahead of
// another by more than one, after any number of epochs.
TEST(Mixture, ExactOverEpochs) {
  for (const double weight : {0.1, 0.3, 0.5, 0.333333, 0.75, 1.5, 2.25, 3.0, 7.1}) {
    for (const int64_t count : {10, 13, 97}) {
      const Documents all = documents({count});
      const std::vector<Source> sources = {source(weight)};
      std::map<int64_t, int> total;
      double expected = 0;
      for (int64_t epoch = 0; epoch < 40; ++epoch) {
        const Documents got = drawn(all, sources, 9, epoch);
        const double exact = static_cast<double>(sources[0].weight * count) / kWeightOnce;
        EXPECT_LT(std::abs(static_cast<double>(got.size()) - exact), 1) << weight;
        expected += exact;
        std::set<std::pair<int64_t, int>> copies;
        for (const auto& d : got) copies.emplace(d.id, d.copy);
        EXPECT_EQ(copies.size(), got.size());
        for (const auto& [id, n] : times(got)) {
          EXPECT_GE(n, static_cast<int>(weight));
          EXPECT_LE(n, static_cast<int>(weight) + 1);
          total[id] += n;
        }
        int low = 1 << 30, high = 0, sum = 0;
        for (const auto& d : all)
          low = std::min(low, total[d.id]), high = std::max(high, total[d.id]), sum += total[d.id];
        EXPECT_LE(high - low, 1) << weight << ", epoch " << epoch;
        EXPECT_EQ(sum, static_cast<int>(expected + 1e-6));
      }
    }
  }
}

// The position in the pack after a billion epochs, in whole numbers: 0.3 * 10 documents take 3 an epoch.
TEST(Mixture, FarEpochsStayExact) {
  const Documents all = documents({10});
  const std::vector<Source> sources = {source(0.3)};
  const int64_t far = int64_t{10} * 1000000007;
  EXPECT_EQ(ids(drawn(all, sources, 2, far)), ids(drawn(all, sources, 2, 0)));
  EXPECT_EQ(ids(drawn(all, sources, 2, far + 7)), ids(drawn(all, sources, 2, 7)));
}

// Every pair of documents has the same chance to be drawn together: no order of ids shows.
TEST(Mixture, UnbiasedOverSeeds) {
  const Documents all = documents({8});
  const std::vector<Source> half = {source(0.5)};
  std::map<int64_t, int> hits;
  int neighbours = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const std::set<int64_t> got = ids(drawn(all, half, seed, 3));
    for (const int64_t id : got) ++hits[id];
    neighbours += got.contains(0) && got.contains(1);
  }
  for (const auto& [id, n] : hits) EXPECT_NEAR(n, 1000, 110) << id;  // deviation 22: five of them
  EXPECT_NEAR(neighbours, 2000 * 3 / 14, 95);                        // 4/8 * 3/7
}

TEST(Mixture, WeightsTooSmallAreRefused) {
  const auto check = [](double weight, int64_t count) {
    const std::vector<Source> sources = {source(weight)};
    const std::vector<SourceSize> sizes = {{count, 10 * count}};
    check_weights("data.tokens", sources, sizes);
  };
  check(0.1, 10);
  check(0.5, 0);  // a source of which nothing can be trained is told elsewhere
  try {
    check(0.01, 50);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), kUsage);
    EXPECT_NE(std::string(e.what()).find("'x@0.01': of its 50 documents an epoch would draw 0.5"),
              std::string::npos)
        << e.what();
  }
}

TEST(Mixture, WhatACheckpointKeeps) {
  const std::vector<SourceSize> sizes = {{480, 1}, {96, 1}};
  EXPECT_EQ(weights_text(std::vector<Source>{source(1), source(1)}, sizes), "1");
  EXPECT_EQ(weights_text(std::vector<Source>{source(2), source(0.5)}, sizes),
            "2 for 480 documents, 0.5 for 96 documents");
}

// Copies of a document lie in other places and draw other anchors; copy 0 lies and draws as without weights.
TEST(Mixture, CopiesDrawForThemselves) {
  const std::vector<uint8_t> mask(101, 1);
  const std::vector<int> first = choose_anchors(mask, 8, 7, 2, 41);
  EXPECT_EQ(choose_anchors(mask, 8, 7, 2, 41, 0), first);
  const std::vector<int> second = choose_anchors(mask, 8, 7, 2, 41, 1),
                         third = choose_anchors(mask, 8, 7, 2, 41, 2);
  EXPECT_NE(second, first);
  EXPECT_NE(third, first);
  EXPECT_NE(third, second);
  EXPECT_NE(choose_anchors(mask, 8, 7, 3, 41, 1), second);

  const auto order = [](const std::vector<Row>& rows, int copy) {
    std::vector<int64_t> out;
    for (const Row& r : rows) {
      for (const auto& d : r.documents) {
        if (d.copy == copy) out.push_back(d.id);
      }
    }
    return out;
  };
  const Documents all = documents({60});
  const std::vector<Source> twice = {source(2)};
  const std::vector<Row> plain = epoch_rows(all, 40, true, 5, 1),
                         rows = epoch_rows(drawn(all, twice, 5, 1), 40, true, 5, 1);
  EXPECT_EQ(order(rows, 0), order(plain, 0));
  EXPECT_EQ(order(rows, 1).size(), 60u);
  EXPECT_NE(order(rows, 1), order(rows, 0));
  EXPECT_NE(order(epoch_rows(drawn(all, twice, 5, 2), 40, true, 5, 2), 1), order(rows, 1));
  // not shuffled: the list once, then again
  const std::vector<Row> kept = epoch_rows(drawn(all, twice, 5, 1), 40, false, 5, 1);
  std::vector<int64_t> want = order(kept, 0);
  EXPECT_TRUE(std::is_sorted(want.begin(), want.end()));
  EXPECT_EQ(order(kept, 1), want);
  EXPECT_EQ(kept.front().documents.front().copy, 0);
  EXPECT_EQ(kept.back().documents.back().copy, 1);
}

TEST(Mixture, BlocksKnowTheirSource) {
  DrafterModel model;
  model.block = 4;
  model.mask_token = 99;
  RowTokens row{
      std::vector<int32_t>(12, 5), std::vector<uint8_t>(12, 1), {5, 3, 4}, {0, 1, 0}, {2, 0, 2}, {0, 0, 1}};
  const RowBlocks b = make_blocks(row, model, LabelMask::prefix, {100, 1, 0});
  EXPECT_EQ(b.source, (std::vector<int32_t>{2, 2, 2, 2, 0, 0, 2, 2, 2}));
  row.sources.clear(), row.copies.clear();
  EXPECT_TRUE(make_blocks(row, model, LabelMask::prefix, {100, 1, 0}).source.empty());
}

}  // namespace
}  // namespace slip
