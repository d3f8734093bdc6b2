#include <sstream>

#include "kernels/cache_attention.hpp"
#include "support/block_attention_case.hpp"
#include "support/finite_difference.hpp"

namespace slip::testing {
namespace {

// Documents of these lengths packed in one row, `blocks` anchors spread over them (the ends of documents
// included).
struct Packing {
  std::vector<int> lengths;
  int blocks;
};
struct Case {
  AttentionShape shape;
  Packing packing;
};
void PrintTo(const Case& c, std::ostream* os) {
  describe(c.shape, os);
  *os << ", " << c.packing.blocks << " blocks in documents of "
      << ::testing::PrintToString(c.packing.lengths);
}
AttentionShape shape(int heads, int kv_heads, int head_dim, int block, int window = 0, bool causal = false) {
  return {heads, kv_heads, head_dim, 0, block, window, causal};
}

const Case kCases[] = {
    // one block without context; one token documents; no more than the first token to see
    {shape(1, 1, 16, 4), {{0}, 1}},
    {shape(2, 1, 16, 4), {{1, 1, 1, 1, 1}, 5}},
    {shape(2, 2, 32, 8), {{2, 1, 3}, 6}},
    // context of a tile, one less, one more; groups 1, 2, 4, 8; head dimensions 16 to 256
    {shape(4, 4, 64, 16), {{63}, 3}},
    {shape(4, 2, 64, 16), {{64}, 4}},
    {shape(4, 1, 64, 16), {{65}, 5}},
    {shape(8, 1, 32, 8), {{127, 1}, 7}},
    {shape(4, 1, 128, 16), {{129, 30}, 9}},
    {shape(2, 1, 256, 16), {{70}, 5}},
    {shape(3, 1, 128, 4), {{40, 40}, 9}},  // a group of 3
    {shape(2, 1, 64, 32), {{33, 50}, 4}},
    // blocks that are no power of two, and of one slot
    {shape(2, 1, 64, 10), {{90}, 8}},
    {shape(2, 1, 16, 1), {{20}, 6}},
    // sliding windows: smaller than a block's reach, across tiles, larger than the document
    {shape(4, 2, 64, 16, 16, true), {{100, 60}, 9}},
    {shape(4, 2, 64, 16, 20, false), {{100, 60}, 9}},
    {shape(4, 1, 128, 8, 70, true), {{200}, 12}},
    {shape(2, 2, 64, 4, 5, false), {{130}, 20}},
    {shape(2, 1, 32, 4, 1000, true), {{30, 30}, 8}},
    // causal in a full layer
    {shape(4, 2, 64, 16, 0, true), {{80, 7}, 6}},
    // many tiles of queries and of keys
    {shape(2, 1, 128, 16), {{500, 200}, 40}},
    {shape(2, 1, 64, 16, 128, true), {{500, 200}, 40}},
    // many blocks at one place: every tile of queries has the same anchor
    {shape(2, 1, 64, 16), {{12}, 12}},
};

template <class T> BlockProblem problem(const Case& c, uint64_t seed) {
  std::vector<int> starts, tokens;
  int context = 0;
  for (const int length : c.packing.lengths) {
    for (int t = 0; t < std::max(length, 1); ++t) tokens.push_back(context + t), starts.push_back(context);
    context += length;
  }
  std::vector<int> anchor, lo;
  for (int i = 0; i < c.packing.blocks; ++i) {  // evenly over the tokens, first and last included
    const size_t at = c.packing.blocks == 1 ? 0
                                            : static_cast<size_t>(i) * (tokens.size() - 1) /
                                                  static_cast<size_t>(c.packing.blocks - 1);
    anchor.push_back(tokens[at]), lo.push_back(starts[at]);
  }
  return make_problem<T>(c.shape, context, anchor, lo, seed);
}

template <class B> class BlockAttention : public KernelTest<B> {};
TYPED_TEST_SUITE(BlockAttention, BackEnds, BackEndName);

// A single block whose context a GPU shares out, as decoding asks for it: no context, less than a piece, many
// pieces, an anchor before the context's end.
TYPED_TEST(BlockAttention, OneBlockWithScratch) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  struct One {
    AttentionShape shape;
    int context, anchor, lo;
  };
  const One ones[] = {{shape(4, 2, 64, 16), 0, 0, 0},
                      {shape(4, 1, 128, 16), 1, 1, 0},
                      {shape(32, 8, 128, 16), 63, 63, 0},
                      {shape(8, 2, 128, 8), 700, 700, 0},
                      {shape(8, 2, 128, 16, 0, true), 1025, 1025, 3},
                      {shape(8, 2, 128, 10, 100), 500, 500, 0},
                      {shape(4, 4, 64, 4, 64, true), 300, 300, 250},
                      {shape(2, 1, 256, 16), 200, 130, 7},
                      {shape(3, 1, 32, 16), 40, 40, 0}};
  for (const One& c : ones) {
    std::ostringstream name;
    describe(c.shape, &name);
    SCOPED_TRACE(::testing::Message() << name.str() << ", anchor " << c.anchor << " of " << c.context);
    const BlockProblem p = make_problem<T>(c.shape, c.context, {c.anchor}, {c.lo});
    Matrix out(p.q.rows, p.q.cols), lse(1, p.q.rows * p.shape.heads);
    block_attention_fwd_ref<double>({p.shape, p.q.view(), p.k_context.view(), p.v_context.view(),
                                     p.k_block.view(), p.v_block.view(), p.anchor.data(), p.lo.data(),
                                     out.view(), lse.values.data()});
    const BlockRun<T> r(p, q), again(p, q);
    const DeviceArray<Acc<T>> scratch(q, 1, cache_attention_scratch(p.shape, q.device));
    for (const BlockRun<T>* run : {&r, &again}) {
      block_attention_fwd<T>({p.shape, run->q.view(), run->k_context.view(), run->v_context.view(),
                              run->k_block.view(), run->v_block.view(), run->anchor.data(), run->lo.data(),
                              run->out.view(), run->lse.data(), scratch.data()},
                             q);
    }
    EXPECT_TRUE(agrees(r.out, out));
    EXPECT_TRUE(agrees_as<T>(r.lse, lse));
    EXPECT_TRUE(same_bits(r.out, again.out));
    EXPECT_TRUE(same_bits(r.lse, again.lse));
    EXPECT_TRUE(scratch.intact());
  }
}

TYPED_TEST(BlockAttention, ForwardAndBackwardAgreeWithReference) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const BlockProblem p = problem<T>(c, 1);
    const BlockAnswer want = reference(p);
    BlockRun<T> run(p, q);
    run.forward(p.shape, q);
    EXPECT_TRUE(agrees(run.out, want.out));
    EXPECT_TRUE(agrees_as<T>(run.lse, want.lse));
    run.backward(p.shape, q);
    EXPECT_TRUE(agrees(run.dq, want.dq));
    EXPECT_TRUE(agrees(run.dk_block, want.dk_block));
    EXPECT_TRUE(agrees(run.dv_block, want.dv_block));
    if (p.k_context.rows > 0) {
      EXPECT_TRUE(agrees_as<T>(run.dk_context, want.dk_context));
      EXPECT_TRUE(agrees_as<T>(run.dv_context, want.dv_context));
    }
    EXPECT_TRUE(run.scratch.intact());
  }
}

TYPED_TEST(BlockAttention, SameInputsSameBits) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  const Case c{shape(8, 2, 64, 16, 50, false), {{150, 90}, 24}};
  const BlockProblem p = problem<T>(c, 2);
  BlockRun<T> a(p, q), b(p, q);
  for (BlockRun<T>* run : {&a, &b}) run->forward(p.shape, q), run->backward(p.shape, q);
  EXPECT_TRUE(same_bits(a.out, b.out));
  EXPECT_TRUE(same_bits(a.lse, b.lse));
  EXPECT_TRUE(same_bits(a.dq, b.dq));
  EXPECT_TRUE(same_bits(a.dk_block, b.dk_block));
  EXPECT_TRUE(same_bits(a.dv_block, b.dv_block));
  EXPECT_TRUE(same_bits(a.dk_context, b.dk_context));
  EXPECT_TRUE(same_bits(a.dv_context, b.dv_context));
}

// No blocks: nothing is written, nothing fails.
TYPED_TEST(BlockAttention, NoBlocks) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const int64_t context : {0, 20}) {
    const BlockProblem p = make_problem<T>(shape(2, 1, 64, 16), context, {}, {});
    BlockRun<T> run(p, q);
    run.forward(p.shape, q);
    run.backward(p.shape, q);
    EXPECT_EQ(run.dk_context.values(), start_of(p.k_context, 7).values);
    EXPECT_EQ(run.dv_context.values(), start_of(p.v_context, 8).values);
    EXPECT_TRUE(run.out.intact() && run.dq.intact() && run.lse.intact());
  }
}

// Scores of several hundred: the softmax is still exact, since whole numbers have exact scores.
TYPED_TEST(BlockAttention, LargeScores) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  BlockProblem p = problem<T>({shape(2, 1, 64, 8), {{50}, 4}}, 3);
  p.shape.scale = 1;
  p.q = random_integers(4, p.q.rows, p.q.cols, 8);
  p.k_context = random_integers(5, p.k_context.rows, p.k_context.cols, 8);
  p.k_block = random_integers(6, p.k_block.rows, p.k_block.cols, 8);
  const BlockAnswer want = reference(p);
  BlockRun<T> run(p, q);
  run.forward(p.shape, q);
  EXPECT_TRUE(agrees(run.out, want.out));
  EXPECT_TRUE(agrees_as<T>(run.lse, want.lse));
}

// A row of two documents is the two rows one after the other; a second block does not change the first.
TYPED_TEST(BlockAttention, DocumentsAndBlocksDoNotInteract) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  const AttentionShape s = shape(4, 2, 64, 16, 30, true);
  const BlockProblem both = make_problem<T>(s, 100, {10, 39, 45, 80}, {0, 0, 40, 40});
  const auto rows = [](const Matrix& m, int64_t first, int64_t count) {
    return Matrix(count, m.cols,
                  {m.values.begin() + first * m.cols, m.values.begin() + (first + count) * m.cols});
  };
  const auto part = [&](int64_t block, int64_t blocks, int64_t token, int64_t tokens,
                        std::vector<int> anchor) {
    const std::vector<int> lo(anchor.size(), 0);
    return BlockProblem{both.shape,
                        std::move(anchor),
                        lo,
                        rows(both.q, 16 * block, 16 * blocks),
                        rows(both.k_context, token, tokens),
                        rows(both.v_context, token, tokens),
                        rows(both.k_block, 16 * block, 16 * blocks),
                        rows(both.v_block, 16 * block, 16 * blocks),
                        rows(both.dout, 16 * block, 16 * blocks)};
  };
  const BlockProblem first = part(0, 2, 0, 40, {10, 39}), second = part(2, 2, 40, 60, {5, 40}),
                     one = part(1, 1, 0, 40, {39});
  BlockRun<T> a(both, q), b(first, q), c(second, q), d(one, q);
  for (BlockRun<T>* run : {&a, &b, &c, &d}) run->forward(both.shape, q);
  const auto append = [](std::vector<double> x, const std::vector<double>& y) {
    return x.insert(x.end(), y.begin(), y.end()), x;
  };
  EXPECT_TRUE(near(a.out.values(), append(b.out.values(), c.out.values()), kTol<T>));
  EXPECT_TRUE(near(a.lse.values(), append(b.lse.values(), c.lse.values()), kTol<T>));
  EXPECT_TRUE(near(rows(a.out.matrix(), 16, 16).values, d.out.values(), kTol<T>));
}

}  // namespace
}  // namespace slip::testing
