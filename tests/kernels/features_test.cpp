// Copies and conversions: the bits are the answer.
#include "kernels/features.hpp"

#include "kernels/embedding.hpp"
#include "support/kernel_test.hpp"

namespace slip::testing {
namespace {

template <class B> class Features : public KernelTest<B> {};
TYPED_TEST_SUITE(Features, BackEnds, BackEndName);

struct Shape {
  int64_t tokens, hidden;
};
constexpr Shape kShapes[] = {{1, 8}, {5, 33}, {7, 64}, {8, 264}, {33, 128}};

TYPED_TEST(Features, JoinPutsTapsSideBySide) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const auto [tokens, hidden] : kShapes) {
    for (const int taps : {1, 5}) {
      SCOPED_TRACE(::testing::Message() << tokens << "x" << hidden << ", " << taps << " taps");
      const int64_t slot_tokens = tokens + 3;
      Matrix mslot = random_matrix<Bf16>(2, 1, taps * slot_tokens * hidden);
      Matrix want(tokens, taps * hidden);
      for (int k = 0; k < taps; ++k) {
        for (int64_t t = 0; t < slot_tokens; ++t) {
          for (int64_t h = 0; h < hidden; ++h) {
            double& x = mslot.at(0, (k * slot_tokens + t) * hidden + h);
            if (t >= tokens) x = NAN;  // the unused end of the slot: neither read nor complained about
            if (t < tokens) want.at(t, k * hidden + h) = x;
          }
        }
      }
      const DeviceArray<Bf16> slot(q, mslot);
      const DeviceArray<T> x(q, tokens, taps * hidden);
      const DeviceArray<int> bad(q, Matrix(1, 1));
      join_taps<T>({.slot = slot.data(),
                    .slot_tokens = slot_tokens,
                    .taps = taps,
                    .x = x.view(),
                    .non_finite = bad.data()},
                   q);
      EXPECT_EQ(x.values(), want.values);
      EXPECT_EQ(bad.values()[0], 0);
    }
  }
}

TYPED_TEST(Features, JoinReportsWhatIsNotFinite) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const double value : {double{NAN}, double{INFINITY}, -double{INFINITY}, 3.3e38}) {
    for (const int64_t at : {0, 137, 2 * 9 * 64 - 1}) {
      Matrix mslot(1, 2 * 9 * 64);
      mslot.at(0, at) = value;
      const DeviceArray<Bf16> slot(q, mslot);
      const DeviceArray<T> x(q, 9, 128);
      const DeviceArray<int> bad(q, Matrix(1, 1));
      JoinTaps<T> a{
          .slot = slot.data(), .slot_tokens = 9, .taps = 2, .x = x.view(), .non_finite = bad.data()};
      join_taps(a, q);
      EXPECT_EQ(bad.values()[0], std::isfinite(value) ? 0 : 1) << value << " at " << at;
      const DeviceArray<Bf16> clean(q, Matrix(1, 2 * 9 * 64));
      a.slot = clean.data();
      join_taps(a, q);
      EXPECT_EQ(bad.values()[0], std::isfinite(value) ? 0 : 1) << "cleared";
    }
  }
}

template <class T, class From, class To> void check_cast(const Queue& q) {
  for (const auto [rows, cols] : kShapes) {
    const Matrix m = random_matrix<From>(3, rows, cols);
    const DeviceArray<From> from(q, m);
    const DeviceArray<To> to(q, rows, cols);
    cast<T, From, To>({.from = from.view(), .to = to.view()}, q);
    EXPECT_EQ(to.values(), rounded<To>(m).values);
  }
}
TYPED_TEST(Features, Cast) {
  using T = typename TypeParam::Type;
  check_cast<T, float, Bf16>(this->queue());
  check_cast<T, Bf16, float>(this->queue());
  check_cast<T, float, float>(this->queue());
}

// The rounding of a kernel is that of the host, word by word; a NaN stays one.
TYPED_TEST(Features, CastRoundsAMillionWordsAsTheHostDoes) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  constexpr int64_t kWords = 1000000;
  Matrix m(1, kWords);
  for (int64_t i = 0; i < kWords; ++i) {
    m.at(0, i) = std::bit_cast<float>(static_cast<uint32_t>(random_u64(5, 0, static_cast<uint64_t>(i))));
  }
  const DeviceArray<float> from(q, m);
  const DeviceArray<Bf16> to(q, 1, kWords);
  cast<T, float, Bf16>({.from = from.view(), .to = to.view()}, q);
  const std::vector<Bf16> got = to.elements();
  for (size_t i = 0; i < got.size(); ++i) {
    const auto x = static_cast<float>(m.values[i]);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(to_float(got[i]))) << i;
    } else {
      ASSERT_EQ(got[i].bits, to_bf16(x).bits) << i << ": " << x;
    }
  }
}

TYPED_TEST(Features, GatherRows) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const auto [rows, cols] : kShapes) {
    const int64_t vocabulary = 100;
    const Matrix mt = random_matrix<T>(4, vocabulary, cols);
    Matrix mi(1, rows), want(rows, cols);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t id = r == 0 ? vocabulary - 1 : r == 1 ? 0 : (r * r) % 10;  // ends, and repeats
      mi.at(0, r) = static_cast<double>(id);
      for (int64_t c = 0; c < cols; ++c) want.at(r, c) = mt.at(id, c);
    }
    const DeviceArray<T> table(q, mt), out(q, rows, cols);
    const DeviceArray<int> index(q, mi);
    gather_rows<T>({.table = table.view(), .index = index.data(), .out = out.view()}, q);
    EXPECT_EQ(out.values(), want.values);
  }
}

TYPED_TEST(Features, NoRows) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  const DeviceArray<T> table(q, Matrix(4, 8)), out(q, 0, 8);
  const DeviceArray<int> index(q, 1, 0), bad(q, Matrix(1, 1));
  const DeviceArray<Bf16> slot(q, 1, 0);
  gather_rows<T>({.table = table.view(), .index = index.data(), .out = out.view()}, q);
  join_taps<T>({.slot = slot.data(), .slot_tokens = 0, .taps = 1, .x = out.view(), .non_finite = bad.data()},
               q);
  EXPECT_TRUE(out.intact() && slot.intact());
  EXPECT_EQ(bad.values()[0], 0);
}

TEST(GatherRowsCpu, RefusesAnIndexOutsideTheTable) {
  const float table[8] = {};
  float out[2];
  for (const int index : {-1, 4}) {
    EXPECT_THROW(gather_rows_cpu<float>({.table = {table, 4, 2}, .index = &index, .out = {out, 1, 2}}),
                 Error);
  }
}

}  // namespace
}  // namespace slip::testing
