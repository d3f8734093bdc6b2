#include "kernels/sample.hpp"

#include "support/kernel_test.hpp"

namespace slip::testing {
namespace {

struct Sampled {
  std::vector<int> token;
  std::vector<float> margin;
};
template <class T>
Sampled run(const Matrix& logits, const Queue& queue, float temperature = 0, uint64_t seed = 1,
            uint64_t sequence = 0, int64_t position = 0) {
  const DeviceArray<Acc<T>> in(queue, logits);
  DeviceArray<int> token(queue, 1, logits.rows);
  DeviceArray<float> margin(queue, 1, logits.rows);
  sample_rows<T>({in.view(), temperature, seed, sequence, position, token.data(), margin.data()}, queue);
  EXPECT_TRUE(token.intact() && margin.intact());
  return {token.elements(), margin.elements()};
}

template <class B> class SampleRowsOp : public KernelTest<B> {};
TYPED_TEST_SUITE(SampleRowsOp, BackEnds, BackEndName);

TYPED_TEST(SampleRowsOp, GreedyIsTheLargestLogitAndTheLowestIdAmongEquals) {
  using T = typename TypeParam::Type;
  for (const int64_t columns : {1, 2, 31, 33, 511, 512, 513, 3000}) {
    Matrix m = random_integers(static_cast<uint64_t>(columns), 5, columns, 50);
    const int64_t at[] = {0, columns / 2, columns - 1, columns / 3, columns / 5};
    for (int64_t r = 0; r < 5; ++r) m.at(r, at[r]) = 60;
    if (columns > 2) m.at(0, columns - 1) = 60, m.at(4, columns - 1) = 59;  // a tie; a close second
    const Sampled s = run<T>(m, this->queue());
    for (int64_t r = 0; r < 5; ++r) {
      const size_t i = static_cast<size_t>(r);
      EXPECT_EQ(s.token[i], at[r]) << columns << " columns, row " << r;
      double next = -INFINITY;
      for (int64_t c = 0; c < columns; ++c)
        if (c != at[r]) next = std::max(next, m.at(r, c));
      EXPECT_EQ(static_cast<double>(s.margin[i]), 60 - next) << columns << " columns, row " << r;
    }
  }
}

// The frequencies are those of softmax(logits / temperature).
TYPED_TEST(SampleRowsOp, SamplesTheSoftmax) {
  using T = typename TypeParam::Type;
  constexpr int64_t kRows = 20000;
  const std::vector<double> logits = {0, 1, 2, -1, 0.5};
  Matrix m(kRows, 5);
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < 5; ++c) m.at(r, c) = logits[static_cast<size_t>(c)];
  const float temperature = 0.7f;
  const Sampled s = run<T>(m, this->queue(), temperature, 3, 9);
  double sum = 0;
  for (const double x : logits) sum += std::exp(x / static_cast<double>(temperature));
  for (int c = 0; c < 5; ++c) {
    const double p = std::exp(logits[static_cast<size_t>(c)] / static_cast<double>(temperature)) / sum;
    const double found = static_cast<double>(std::count(s.token.begin(), s.token.end(), c)) / kRows;
    EXPECT_NEAR(found, p, 4 * std::sqrt(p * (1 - p) / kRows)) << "id " << c;
  }
}

// A token depends on seed, sequence and position, not on how many rows were asked for.
TYPED_TEST(SampleRowsOp, TheNoiseBelongsToThePosition) {
  using T = typename TypeParam::Type;
  const Matrix m = random_matrix<float>(5, 40, 100);
  const Sampled all = run<T>(m, this->queue(), 2.0f, 7, 1, 10);
  const Matrix tail(15, 100, {m.values.begin() + 2500, m.values.end()});
  const Sampled some = run<T>(tail, this->queue(), 2.0f, 7, 1, 35);
  EXPECT_EQ(some.token, std::vector<int>(all.token.begin() + 25, all.token.end()));
  EXPECT_NE(run<T>(m, this->queue(), 2.0f, 8, 1, 10).token, all.token);
  EXPECT_NE(run<T>(m, this->queue(), 2.0f, 7, 2, 10).token, all.token);
  EXPECT_NE(run<T>(m, this->queue(), 2.0f, 7, 1, 11).token, all.token);
}

TYPED_TEST(SampleRowsOp, NotANumberHasNoMargin) {
  using T = typename TypeParam::Type;
  Matrix m(1, 3);
  m.at(0, 0) = std::nan("");
  EXPECT_FALSE(run<T>(m, this->queue()).margin[0] >= 0);
}

}  // namespace
}  // namespace slip::testing
