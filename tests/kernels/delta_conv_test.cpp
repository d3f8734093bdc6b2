#include "kernels/delta_conv.hpp"

#include "support/kernel_test.hpp"

namespace slip::testing {
namespace {

struct Case {
  int taps, head_dim;
  int64_t normed, channels;
  std::vector<int> lengths;  // of documents
};
void PrintTo(const Case& c, std::ostream* os) {
  *os << c.taps << " taps, heads of " << c.head_dim << ", " << c.normed << " of " << c.channels
      << " channels normed, documents of " << ::testing::PrintToString(c.lengths);
}
// Heads of 128 with four taps are a kernel of their own on a GPU, in pieces of 32 tokens and 1024 channels.
const Case kCases[] = {
    {4, 16, 64, 160, {1, 2, 3, 4, 70, 9}},
    {4, 128, 512, 1280, {31, 1, 2, 3, 5, 33, 64}},
    {4, 128, 256, 640, {1}},
    {4, 128, 0, 128, {65}},
    {4, 128, 128, 200, {5, 7}},  // channels that are no whole heads
    {2, 128, 256, 512, {3, 1, 40}},
    {1, 8, 8, 24, {3}},
    {8, 256, 256, 512, {1, 7, 8, 9, 20}},
    {3, 20, 40, 50, {2, 11}},
};

struct Problem {
  Matrix x, taps, position;
};
template <class T> Problem make_problem(const Case& c) {
  std::vector<int> position;
  for (const int n : c.lengths) {
    for (int p = 0; p < n; ++p) position.push_back(p);
  }
  return {random_matrix<T>(1, static_cast<int64_t>(position.size()), c.channels),
          random_matrix<T>(2, c.channels, c.taps, 0.5), row_of(position)};
}
Matrix reference(const Case& c, const Problem& p) {
  Matrix y(p.x.rows, c.channels);
  for (int64_t t = 0; t < p.x.rows; ++t) {
    for (int64_t ch = 0; ch < c.channels; ++ch) {
      double sum = 0;
      for (int64_t j = 0; j < c.taps && static_cast<double>(j) <= p.position.at(0, t); ++j)
        sum += p.taps.at(ch, c.taps - 1 - j) * p.x.at(t - j, ch);
      y.at(t, ch) = sum / (1 + std::exp(-sum));
    }
    for (int64_t head = 0; head < c.normed; head += c.head_dim) {
      double squares = 0;
      for (int64_t i = 0; i < c.head_dim; ++i) squares += y.at(t, head + i) * y.at(t, head + i);
      for (int64_t i = 0; i < c.head_dim; ++i) y.at(t, head + i) /= std::sqrt(squares + 1e-6);
    }
  }
  return y;
}
template <class T> DeviceArray<T> run(const Case& c, const Problem& p, const Queue& q) {
  const Matrix flat(1, p.taps.rows * p.taps.cols, p.taps.values);
  const DeviceArray<T> x(q, p.x), taps(q, flat);
  DeviceArray<T> y(q, p.x.rows, p.x.cols);
  const DeviceArray<int> position(q, p.position);
  delta_conv_fwd<T>({x.view(), taps.data(), c.taps, c.head_dim, c.normed, position.data(), y.view()}, q);
  EXPECT_TRUE(y.intact());
  return y;
}

template <class B> class DeltaConv : public KernelTest<B> {};
TYPED_TEST_SUITE(DeltaConv, BackEnds, BackEndName);

TYPED_TEST(DeltaConv, AgreesWithReference) {
  using T = typename TypeParam::Type;
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Problem p = make_problem<T>(c);
    const DeviceArray<T> y = run<T>(c, p, this->queue());
    EXPECT_TRUE(agrees(y, reference(c, p)));
    EXPECT_TRUE(same_bits(y, run<T>(c, p, this->queue())));
  }
}

// A token reaches itself and the next three of its document, bit by bit.
TYPED_TEST(DeltaConv, WhoSeesWhom) {
  using T = typename TypeParam::Type;
  for (const Case& c : {Case{4, 16, 0, 16, {5, 2, 6}}, Case{4, 128, 0, 128, {5, 2, 6}}}) {
    const Problem p = make_problem<T>(c);
    const Matrix before = run<T>(c, p, this->queue()).matrix();
    for (int64_t t = 0; t < p.x.rows; ++t) {
      Problem changed = p;
      for (int64_t i = 0; i < c.channels; ++i) changed.x.at(t, i) += 8;
      const Matrix after = run<T>(c, changed, this->queue()).matrix();
      for (int64_t row = 0; row < p.x.rows; ++row) {
        bool differs = false;
        for (int64_t i = 0; i < c.channels; ++i) differs = differs || after.at(row, i) != before.at(row, i);
        const bool same_document =
            row >= t && p.position.at(0, row) - p.position.at(0, t) == static_cast<double>(row - t);
        EXPECT_EQ(differs, same_document && row < t + 4) << "token " << t << ", row " << row;
      }
    }
  }
}

// A document in two calls: the second finds the tokens before in the rows before.
TYPED_TEST(DeltaConv, GoesOnInADocument) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const Case& c : {Case{4, 16, 32, 48, {70}}, Case{4, 128, 256, 384, {70}}, Case{3, 8, 8, 16, {70}}}) {
    const Problem p = make_problem<T>(c);
    const DeviceArray<T> whole = run<T>(c, p, q), x(q, p.x),
                         taps(q, Matrix(1, p.taps.rows * p.taps.cols, p.taps.values));
    const DeviceArray<int> position(q, p.position);
    for (const int64_t cut : {1, 2, 3, 4, 33}) {
      const int64_t n = p.x.rows - cut;
      DeviceArray<T> y(q, n, c.channels);
      delta_conv_fwd<T>({x.view().rows_from(cut, n), taps.data(), c.taps, c.head_dim, c.normed,
                         position.data() + cut, y.view()},
                        q);
      std::vector<double> want = whole.values();
      want.erase(want.begin(), want.begin() + cut * c.channels);
      SCOPED_TRACE(::testing::PrintToString(c) + " cut at " + std::to_string(cut));
      if (q.on_cpu()) {  // its sums may be fused or not where memory lies differently
        EXPECT_TRUE(near(y.values(), want, 1e-6, 1e-6));
      } else {
        EXPECT_EQ(y.values(), want);
      }
    }
  }
}

TYPED_TEST(DeltaConv, KeepsTheRowsThatItWillNeed) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const int64_t from : {0, 1, 2, 3, 6}) {
    Matrix rows = random_integers(5, 3 * 9, 300, 100);
    DeviceArray<T> got(q, rows);
    keep_rows<T>({got.view().cols_from(0, 270), 9, 3, from}, q);
    Matrix want = rows;
    for (int64_t group = 0; group < 27; group += 9) {
      for (int64_t i = 0; i < 3; ++i) {
        for (int64_t c = 0; c < 270; ++c) want.at(group + i, c) = rows.at(group + from + i, c);
      }
    }
    EXPECT_EQ(got.values(), want.values) << "from row " << from;
  }
}

TYPED_TEST(DeltaConv, NoTokens) {
  using T = typename TypeParam::Type;
  const Case c{4, 16, 32, 48, {}};
  EXPECT_TRUE(run<T>(c, make_problem<T>(c), this->queue()).intact());
}

// Worked out by hand: the last tap multiplies the token itself.
TEST(DeltaConvExample, ThreeTokens) {
  const Matrix x(3, 1, {1, 2, 3});
  const double taps[] = {0.1, 0.2, 0.3, 0.4};
  const int position[] = {0, 1, 2};
  Matrix y(3, 1);
  delta_conv_fwd_cpu<double>({x.view(), taps, 4, 1, 0, position, y.view()});
  EXPECT_TRUE(near(y.values, std::vector<double>{0.239475064, 0.825286116, 1.761594156}, 1e-9, 0));
}

}  // namespace
}  // namespace slip::testing
