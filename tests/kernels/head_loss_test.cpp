#include "support/head_loss_case.hpp"

namespace slip::testing {
namespace {

constexpr LossRule kDecay{LossKind::decay, 7, 0.5f}, kDpace{LossKind::dpace, 7, 0.5f};

struct Case {
  int64_t blocks;
  int block;
  int64_t hidden, vocabulary, chunk_rows;
};
void PrintTo(const Case& c, std::ostream* os) {
  *os << c.blocks << " blocks of " << c.block << ", hidden " << c.hidden << ", vocabulary " << c.vocabulary
      << ", chunks of " << c.chunk_rows;
}
const Case kCases[] = {
    {1, 2, 8, 16, 2},      {3, 4, 16, 24, 4},       {5, 16, 64, 256, 16},  {5, 16, 64, 1000, 33},
    {17, 8, 64, 2056, 40}, {9, 16, 128, 320, 4096}, {4, 10, 72, 5000, 64},
};

// The lead of the largest logit over the others: rounding to T cannot change the argmax where it is large.
double lead(const LossProblem& p, int64_t row) {
  double first = -INFINITY, second = -INFINITY;
  for (int64_t v = 0; v < p.head.rows; ++v) {
    double logit = 0;
    for (int64_t h = 0; h < p.head.cols; ++h) logit += p.hidden.at(row, h) * p.head.at(v, h);
    second = std::max(second, std::min(first, logit));
    first = std::max(first, logit);
  }
  return first - second;
}
int argmax(const LossProblem& p, int64_t row) {
  int best = 0;
  double top = -INFINITY;
  for (int64_t v = 0; v < p.head.rows; ++v) {
    double logit = 0;
    for (int64_t h = 0; h < p.head.cols; ++h) logit += p.hidden.at(row, h) * p.head.at(v, h);
    if (logit > top) top = logit, best = static_cast<int>(v);
  }
  return best;
}

template <class B> class HeadLossTest : public KernelTest<B> {};
TYPED_TEST_SUITE(HeadLossTest, BackEnds, BackEndName);

TYPED_TEST(HeadLossTest, AgreesWithReference) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const Case& c : kCases) {
    for (const LossRule& rule : {kDecay, kDpace, LossRule{LossKind::decay, 0, 0}}) {
      SCOPED_TRACE(::testing::Message()
                   << ::testing::PrintToString(c) << (rule.kind == LossKind::dpace ? ", dpace" : ", decay ")
                   << rule.gamma);
      LossProblem p = make_loss_problem<T>(c.blocks, c.block, c.hidden, c.vocabulary, rule);
      for (int64_t r = 1; r < p.rows(); r += 3) {  // some right answers
        if (p.valid[static_cast<size_t>(r)]) p.labels[static_cast<size_t>(r)] = argmax(p, r);
      }
      const LossAnswer want = reference(p);
      const LossRun<T> run(p, c.chunk_rows, q);
      EXPECT_TRUE(agrees_as<T>(run.nll, want.nll));
      EXPECT_TRUE(agrees_as<T>(run.weight, want.weight));
      EXPECT_TRUE(agrees(run.dhidden, want.dhidden));
      const std::vector<uint8_t> correct = run.correct.elements();
      for (int64_t r = 0; r < p.rows(); ++r) {
        if (!p.valid[static_cast<size_t>(r)] || lead(p, r) > 10 * kTol<T>.abs) {
          EXPECT_EQ(correct[static_cast<size_t>(r)], want.correct[static_cast<size_t>(r)]) << "row " << r;
        }
      }
      const LossRun<T> no_gradient(p, c.chunk_rows, q, false);
      EXPECT_TRUE(same_bits(no_gradient.nll, run.nll));
      EXPECT_TRUE(same_bits(no_gradient.correct, run.correct));
    }
  }
}

TYPED_TEST(HeadLossTest, ChunksChangeNothing) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const LossRule& rule : {kDecay, kDpace}) {
    const LossProblem p = make_loss_problem<T>(12, 8, 64, 500, rule, 5);
    const LossRun<T> whole(p, 96, q), again(p, 96, q);
    EXPECT_TRUE(same_bits(whole.dhidden, again.dhidden));
    EXPECT_TRUE(same_bits(whole.nll, again.nll));
    for (const int64_t chunk : {8, 9, 23, 24, 25, 64}) {
      SCOPED_TRACE(chunk);
      const LossRun<T> chunked(p, chunk, q);
      // fp32 sums may be taken in another order; a rounding of a bf16 logit may then fall to the other side
      const Tolerance tol = __is_same(T, Bf16) ? kTol<T> : Tolerance{1e-6, 1e-6, 1e-6};
      EXPECT_TRUE(near(chunked.nll.values(), whole.nll.values(), tol));
      EXPECT_TRUE(near(chunked.weight.values(), whole.weight.values(), tol));
      EXPECT_TRUE(near(chunked.dhidden.values(), whole.dhidden.values(), tol));
    }
  }
}

TYPED_TEST(HeadLossTest, RowsWithoutALabelGetZeros) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  LossProblem p = make_loss_problem<T>(6, 8, 32, 64, kDpace, 6);
  std::fill(p.valid.begin() + 16, p.valid.begin() + 24, uint8_t{0});  // a whole block
  const LossRun<T> run(p, 8, q);
  const Matrix dhidden = run.dhidden.matrix();
  const std::vector<double> nll = run.nll.values(), weight = run.weight.values();
  for (int64_t r = 0; r < p.rows(); ++r) {
    const auto i = static_cast<size_t>(r);
    double size = 0;
    for (int64_t c = 0; c < dhidden.cols; ++c) size += std::abs(dhidden.at(r, c));
    EXPECT_EQ(size > 0, p.valid[i] != 0) << r;
    EXPECT_EQ(nll[i] > 0, p.valid[i] != 0) << r;
    EXPECT_EQ(weight[i] > 0, p.valid[i] != 0) << r;
    EXPECT_TRUE(p.valid[i] || run.correct.elements()[i] == 0) << r;
  }
}

TYPED_TEST(HeadLossTest, NoValidRowsAndNoBlocks) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  LossProblem p = make_loss_problem<T>(3, 4, 16, 32, kDecay, 7);
  std::fill(p.valid.begin(), p.valid.end(), uint8_t{0});
  const LossRun<T> run(p, 4, q);
  EXPECT_EQ(run.dhidden.values(), std::vector<double>(12 * 16, 0));
  EXPECT_EQ(run.nll.values(), std::vector<double>(12, 0));
  EXPECT_EQ(run.weight.values(), std::vector<double>(12, 0));
  EXPECT_EQ(run.correct.values(), std::vector<double>(12, 0));
  const LossProblem none = make_loss_problem<T>(0, 4, 16, 32, kDecay, 8);
  EXPECT_TRUE(LossRun<T>(none, 4, q).dhidden.intact());
}

// All logits 0: the loss is the logarithm of the rows of the head, padding included, in fp32 whatever the
// type.
TYPED_TEST(HeadLossTest, UniformLogitsCostTheLogarithmOfTheVocabulary) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  struct Uniform {
    int vocabulary, label;
    double nll;
  };
  for (const Uniform& u : {Uniform{16, 2, 2.772589},
                           {16, 12, 2.772589},
                           {16, 15, 2.772589},
                           {16, 0, 2.772589},
                           {32000, 31999, 10.373491}}) {
    const LossProblem p{2, kDecay, Matrix(2, 8), random_matrix<T>(9, u.vocabulary, 8), {-1, u.label}, {0, 1}};
    const LossRun<T> run(p, 2, q);
    EXPECT_NEAR(run.nll.values()[1], u.nll, 1e-5) << u.vocabulary;
    EXPECT_EQ(run.weight.values()[1], 1);
    EXPECT_EQ(run.correct.values()[1], u.label == 0) << "ties go to the lowest id";
  }
}

// Whole-number logits, so that ties are ties on every back end: the lowest id of the largest wins.
TYPED_TEST(HeadLossTest, TiesGoToTheLowestId) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const int64_t vocabulary : {16, 300, 1040, 4104}) {
    Matrix head(vocabulary, 8);
    for (int64_t v = 0; v < vocabulary; ++v) head.at(v, 0) = v % 7 == 3 ? 5 : static_cast<double>(v % 3);
    const int last = static_cast<int>((vocabulary - 4) / 7 * 7 + 3);
    Matrix hidden(4, 8);
    for (int64_t r = 0; r < 4; ++r) hidden.at(r, 0) = 1;
    const LossProblem p{4, kDecay, hidden, head, {-1, 3, 10, last}, {0, 1, 1, 1}};
    EXPECT_EQ(LossRun<T>(p, 4, q).correct.values(), (std::vector<double>{0, 1, 0, 0})) << vocabulary;
    hidden.at(1, 0) = -1;  // now the zeros are largest: ids 0, 6, 9, ...
    const LossProblem negative{4, kDecay, hidden, head, {-1, 0, 3, 6}, {0, 1, 1, 1}};
    EXPECT_EQ(LossRun<T>(negative, 4, q).correct.values(), (std::vector<double>{0, 1, 1, 0})) << vocabulary;
  }
}

// Logits that overflow exp in fp32, and a label that is all but impossible.
TYPED_TEST(HeadLossTest, LargeLogits) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  Matrix head(16, 8), hidden(2, 8);
  hidden.at(1, 0) = 1;
  for (int64_t v = 0; v < 16; ++v) head.at(v, 0) = v == 4 ? 512 : -128;
  const LossProblem p{2, kDecay, hidden, head, {-1, 9}, {0, 1}};
  const LossRun<T> run(p, 2, q);
  EXPECT_NEAR(run.nll.values()[1], 640, 1e-3);
  EXPECT_TRUE(agrees(run.dhidden, reference(p).dhidden));
}

TEST(HeadLossCpu, RefusesALabelOutsideTheVocabulary) {
  const Queue cpu;
  for (const int label : {-1, 16}) {
    const LossProblem p{2, kDecay, Matrix(2, 8), Matrix(16, 8), {0, label}, {0, 1}};
    EXPECT_THROW(LossRun<float>(p, 2, cpu), Error) << label;
  }
}

}  // namespace
}  // namespace slip::testing
