// Who sees whom: tables drawn by hand against the rule, against the reference and against every back end.
#include <algorithm>
#include <string>

#include "support/block_attention_case.hpp"

namespace slip::testing {
namespace {

constexpr AttentionShape kFull{1, 1, 16, 0.25f, 4, 0, false};
constexpr AttentionShape kSliding{1, 1, 16, 0.25f, 4, 5, true};
constexpr AttentionShape kSlidingBoth{1, 1, 16, 0.25f, 4, 5, false};

struct Drawn {
  const char* name;
  AttentionShape shape;
  int ones;
  std::vector<int> anchor;
  std::vector<std::string> rows;  // context 0..11, then the slots of block 0, then those of block 1
};
const Drawn kDrawn[] = {
    {"full",
     kFull,
     72,
     {3, 7},
     {"111.........1111....", "111.........1111....", "111.........1111....", "111.........1111....",
      "1111111.........1111", "1111111.........1111", "1111111.........1111", "1111111.........1111"}},
    {"sliding, causal",
     kSliding,
     39,
     {3, 7},
     {"111.........1.......", "111.........11......", ".11.........111.....", "..1.........1111....",
      "...1111.........1...", "....111.........11..", ".....11.........111.", "......1.........1111"}},
    {"sliding, not causal",
     kSlidingBoth,
     51,
     {3, 7},
     {"111.........1111....", "111.........1111....", ".11.........1111....", "..1.........1111....",
      "...1111.........1111", "....111.........1111", ".....11.........1111", "......1.........1111"}},
    {"overlapping blocks",
     kFull,
     72,
     {4, 6},
     {"1111........1111....", "1111........1111....", "1111........1111....", "1111........1111....",
      "111111..........1111", "111111..........1111", "111111..........1111", "111111..........1111"}},
    {"window of the block's length",
     {1, 1, 16, 0.25f, 4, 4, true},
     26,
     {0, 10},
     {"............1.......", "............11......", "............111.....", "............1111....",
      ".......111......1...", "........11......11..", ".........1......111.", "................1111"}},
};
constexpr int kContext = 12, kBlocks = 2;

TEST(BlockMask, RuleEqualsTheDrawings) {
  for (const Drawn& d : kDrawn) {
    SCOPED_TRACE(d.name);
    int ones = 0;
    for (int row = 0; row < 8; ++row) {
      const int block = row / 4, slot = row % 4, anchor = d.anchor[static_cast<size_t>(block)];
      std::string seen;
      for (int k = 0; k < kContext; ++k) seen += sees_context(d.shape, 0, anchor, slot, k) ? '1' : '.';
      for (int key = 0; key < 8; ++key)
        seen += key / 4 == block && sees_slot(d.shape, slot, key % 4) ? '1' : '.';
      EXPECT_EQ(seen, d.rows[static_cast<size_t>(row)]) << "row " << row;
      ones += static_cast<int>(std::count(seen.begin(), seen.end(), '1'));
      const size_t first = seen.substr(0, kContext).find('1');
      EXPECT_EQ(first_context(d.shape, 0, anchor, slot),
                first == std::string::npos ? anchor : static_cast<int>(first));
    }
    EXPECT_EQ(ones, d.ones);
  }
}

TEST(BlockMask, FirstContextIsTheFirstSeen) {
  for (int i = 0; i < 20000; ++i) {
    const auto draw = [&](int n, uint64_t below) {
      return static_cast<int>(random_u64(1, static_cast<uint64_t>(n), static_cast<uint64_t>(i)) % below);
    };
    const int lo = draw(0, 20), anchor = lo + draw(1, 30), block = 1 + draw(2, 16),
              slot = draw(3, static_cast<uint64_t>(block));
    const AttentionShape s{1, 1, 16, 1, block, draw(4, 3) == 0 ? 0 : block + draw(5, 30), false};
    int first = anchor;
    for (int k = anchor - 1; k >= 0; --k) {
      const bool seen = k >= lo && (s.window == 0 || anchor + slot - k < s.window);
      ASSERT_EQ(sees_context(s, lo, anchor, slot, k), seen) << i;
      if (seen) first = k;
    }
    ASSERT_EQ(first_context(s, lo, anchor, slot), first) << i;
    ASSERT_FALSE(sees_context(s, lo, anchor, slot, anchor))
        << "the target's state at the anchor does not exist yet";
  }
}

// Documents [0,4), [4,9): a block of the second sees nothing of the first.
TEST(BlockMask, OtherDocumentsAreOutOfSight) {
  for (int k = 0; k < 9; ++k) EXPECT_EQ(sees_context(kFull, 4, 7, 0, k), k >= 4 && k < 7) << k;
  for (int k = 0; k < 9; ++k)
    EXPECT_FALSE(sees_context(kFull, 4, 4, 0, k)) << k;  // the document's first token
  EXPECT_EQ(first_context(kFull, 4, 4, 0), 4);
  EXPECT_EQ(first_context(kSliding, 4, 5, 0), 4);
}

template <class B> class BlockMaskOutput : public KernelTest<B> {};
TYPED_TEST_SUITE(BlockMaskOutput, BackEnds, BackEndName);

// Which rows of the output change, bit by bit, when a key (or a value) does: exactly those that see it.
TYPED_TEST(BlockMaskOutput, KeysReachTheRowsThatSeeThem) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const Drawn& d : kDrawn) {
    const BlockProblem p = make_problem<T>(d.shape, kContext, d.anchor, {0, 0});
    const auto output = [&](const BlockProblem& changed) {
      BlockRun<T> run(changed, q);
      run.forward(changed.shape, q);
      return run.out.matrix();
    };
    const Matrix before = output(p);
    for (int key = 0; key < kContext + 8; ++key) {
      for (const bool value : {false, true}) {
        SCOPED_TRACE(::testing::Message() << d.name << ", key " << key << (value ? ", v" : ", k"));
        BlockProblem changed = p;
        Matrix& m = key < kContext ? (value ? changed.v_context : changed.k_context)
                                   : (value ? changed.v_block : changed.k_block);
        for (int64_t c = 0; c < m.cols; ++c) m.at(key < kContext ? key : key - kContext, c) += 8;
        const Matrix after = output(changed);
        for (int64_t row = 0; row < 8; ++row) {
          bool differs = false;
          for (int64_t c = 0; c < 16; ++c) differs = differs || after.at(row, c) != before.at(row, c);
          // A row that sees one key only has softmax 1 whatever the key is.
          const std::string& seen = d.rows[static_cast<size_t>(row)];
          const bool alone = !value && std::count(seen.begin(), seen.end(), '1') == 1;
          EXPECT_EQ(differs, seen[static_cast<size_t>(key)] == '1' && !alone) << "row " << row;
        }
      }
    }
  }
}

// The gradient of a context row that no block sees stays what it was, bit by bit.
TYPED_TEST(BlockMaskOutput, UnseenContextGetsNoGradient) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const Drawn& d : kDrawn) {
    SCOPED_TRACE(d.name);
    const BlockProblem p = make_problem<T>(d.shape, kContext, d.anchor, {0, 0});
    BlockRun<T> run(p, q);
    run.forward(p.shape, q);
    run.backward(p.shape, q);
    for (const bool value : {false, true}) {
      const Matrix start = value ? start_of(p.v_context, 8) : start_of(p.k_context, 7);
      const Matrix got = value ? run.dv_context.matrix() : run.dk_context.matrix();
      for (int64_t k = 0; k < kContext; ++k) {
        bool seen = false, changed = false;
        for (const std::string& row : d.rows) seen = seen || row[static_cast<size_t>(k)] == '1';
        for (int64_t c = 0; c < got.cols; ++c) changed = changed || got.at(k, c) != start.at(k, c);
        EXPECT_EQ(changed, seen) << "token " << k;
      }
    }
  }
}

}  // namespace
}  // namespace slip::testing
