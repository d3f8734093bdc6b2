// Documents to rows to steps: each once per epoch, the same on every call, no step across two epochs.
#include "train/rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "core/check.hpp"

namespace slip {
namespace {

using Documents = std::vector<TokenCorpus::Document>;

Documents documents(size_t count, int64_t shortest, int64_t longest) {
  std::mt19937 random(3);
  Documents out;
  for (size_t i = 0; i < count; ++i) {
    const auto n = static_cast<int64_t>(random() % static_cast<uint64_t>(longest - shortest + 1));
    out.push_back({static_cast<int64_t>(3 * i), shortest + n});  // ids have gaps where documents were dropped
  }
  return out;
}
std::vector<int64_t> ids(const std::vector<Row>& rows) {
  std::vector<int64_t> out;
  for (const Row& r : rows) {
    for (const auto& d : r.documents) out.push_back(d.id);
  }
  return out;
}

TEST(Rows, EveryDocumentOncePerEpoch) {
  const Documents all = documents(200, 2, 64);
  for (const bool shuffle : {true, false}) {
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<int64_t> seen = ids(epoch_rows(all, 100, shuffle, 5, epoch));
      std::sort(seen.begin(), seen.end());
      ASSERT_EQ(seen.size(), all.size());
      for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(seen[i], all[i].id);
    }
  }
}

TEST(Rows, NextFit) {
  const Documents all = documents(200, 2, 64);
  for (const int64_t row_tokens : {64, 100, 1000}) {
    const std::vector<Row> rows = epoch_rows(all, row_tokens, true, 5, 0);
    int64_t tokens = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      int64_t sum = 0;
      for (const auto& d : rows[i].documents) sum += d.length;
      EXPECT_EQ(rows[i].tokens, sum);
      EXPECT_FALSE(rows[i].documents.empty());
      EXPECT_LE(sum, row_tokens);
      // a row ends because the next document does not fit
      const bool last = i + 1 == rows.size();
      EXPECT_TRUE(last || sum + rows[i + 1].documents[0].length > row_tokens);
      tokens += sum;
    }
    EXPECT_LE(static_cast<int64_t>(rows.size()), 2 * tokens / row_tokens + 1);
  }
  EXPECT_THROW(epoch_rows(all, 10, true, 5, 0), Error);
}

TEST(Rows, OrderIsAFunctionOfSeedAndEpoch) {
  const Documents all = documents(50, 2, 20);
  const std::vector<int64_t> first = ids(epoch_rows(all, 40, true, 5, 0));
  EXPECT_EQ(ids(epoch_rows(all, 40, true, 5, 0)), first);
  EXPECT_NE(ids(epoch_rows(all, 40, true, 5, 1)), first);
  EXPECT_NE(ids(epoch_rows(all, 40, true, 6, 0)), first);
  EXPECT_EQ(ids(epoch_rows(all, 80, true, 5, 0)), first);  // how many fit does not matter
  Documents backwards(all.rbegin(), all.rend());           // nor the order in which they are named
  EXPECT_EQ(ids(epoch_rows(backwards, 40, true, 5, 0)), first);
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
  const std::vector<int64_t> plain = ids(epoch_rows(all, 40, false, 5, 1));
  EXPECT_TRUE(std::is_sorted(plain.begin(), plain.end()));
}

// D8: 10 documents, 4 rows a step: 4, 4 and the 2 that are left.
TEST(Steps, TheLastOneOfAnEpochTakesWhatIsLeft) {
  EXPECT_EQ(steps_of_epoch(10, 4), 3);
  EXPECT_EQ(steps_of_epoch(8, 4), 2);
  EXPECT_EQ(steps_of_epoch(1, 4), 1);
}

TEST(Steps, TheShorterLimitCounts) {
  Documents all;
  for (int64_t i = 0; i < 10; ++i) all.push_back({i, 20});
  DataConfig data;
  data.row_tokens = 20;  // 10 rows an epoch
  TrainConfig train;
  train.rows_per_step = 4;
  std::vector<Source> sources(1);
  const auto steps = [&](int64_t limit, int64_t epochs) {
    train.steps = limit;
    data.epochs = epochs;
    return total_steps(all, sources, data, train);
  };
  EXPECT_EQ(steps(0, 1), 3);
  EXPECT_EQ(steps(0, 5), 15);
  EXPECT_EQ(steps(7, 0), 7);
  EXPECT_EQ(steps(7, 5), 7);
  EXPECT_EQ(steps(100, 2), 6);
  EXPECT_EQ(steps(6, 2), 6);
  sources[0].weight = kWeightOnce * 2;  // 20 rows an epoch
  EXPECT_EQ(steps(0, 2), 10);
  sources[0].weight = kWeightOnce / 4;  // 2 and 3 rows in turn
  EXPECT_EQ(steps(0, 4), 4);
}

}  // namespace
}  // namespace slip
