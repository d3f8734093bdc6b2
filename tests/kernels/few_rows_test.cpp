// Products of at most 16 rows: in bf16 they have a kernel of their own (kernels/few_rows.hpp).
// Shapes that it tells apart: rows up to 8 and 16, columns and depths that end inside a tile, a depth that
// one block holds (4096) and one that blocks share.
#include "kernels/few_rows.hpp"
#include "kernels/swiglu.hpp"
#include "support/kernel_test.hpp"

namespace slip::testing {
namespace {

struct Shape {
  int64_t m, n, k;
};
constexpr Shape kShapes[] = {{1, 8, 8},       {16, 8, 64},     {3, 1, 1032},   {16, 1059, 72},
                             {8, 1064, 1000}, {9, 2117, 2560}, {16, 40, 3000}, {15, 1600, 4096},
                             {16, 24, 4104},  {1, 1059, 5120}, {7, 531, 8200}, {16, 700, 12288}};
void PrintTo(const Shape& s, std::ostream* os) { *os << s.m << "x" << s.n << "x" << s.k; }

Matrix reference(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.rows);
  matmul_ref<double, double>({.form = Product::nt, .a = a.view(), .b = b.view(), .c = c.view()});
  return c;
}

template <class T, class Out> void check(const Queue& q) {
  for (const Shape& s : kShapes) {
    const Matrix ma = random_matrix<T>(1, s.m, s.k),
                 mb = random_matrix<T>(2, s.n, s.k, 1 / std::sqrt(static_cast<double>(s.k)));
    const Matrix want = reference(ma, mb);
    for (const bool settled : {false, true}) {
      SCOPED_TRACE(::testing::Message() << ::testing::PrintToString(s) << (settled ? " settled" : ""));
      const DeviceArray<T> a(q, ma), b(q, mb);
      const DeviceArray<Out> c(q, s.m, s.n), again(q, s.m, s.n);
      const auto product = [&](View2<Out> to) {
        matmul<T, Out>({.form = Product::nt, .a = a.view(), .b = b.view(), .c = to, .b_settled = settled}, q);
      };
      product(c.view());
      product(again.view());  // also the tickets of a shared depth are as they were
      EXPECT_TRUE(agrees_as<T>(c, want));
      EXPECT_TRUE(same_bits(c, again));
      EXPECT_TRUE(c.intact());
    }
  }
}

template <class B> class FewRows : public KernelTest<B> {};
TYPED_TEST_SUITE(FewRows, BackEnds, BackEndName);

TYPED_TEST(FewRows, AgreesWithReference) {
  using T = typename TypeParam::Type;
  check<T, T>(this->queue());
  if constexpr (!__is_same(T, Acc<T>)) check<T, Acc<T>>(this->queue());
}

// Whole numbers: the sums are exact, so a wrong, missing or doubled term shows.
TYPED_TEST(FewRows, WholeNumbersAreExact) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(::testing::PrintToString(s));
    const Matrix ma = random_integers(4, s.m, s.k, 4), mb = random_integers(5, s.n, s.k, 4);
    const DeviceArray<T> a(q, ma), b(q, mb);
    const DeviceArray<Acc<T>> c(q, s.m, s.n);
    matmul<T, Acc<T>>({.form = Product::nt, .a = a.view(), .b = b.view(), .c = c.view()}, q);
    EXPECT_EQ(c.values(), reference(ma, mb).values);
  }
}

// Column slices of wider matrices; what lies beside the result stays.
TYPED_TEST(FewRows, Slices) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  const Matrix ma = random_integers(6, 16, 512, 4), mb = random_integers(7, 200, 512, 4);
  const DeviceArray<T> a(q, ma), b(q, mb), c(q, random_integers(8, 16, 300, 4));
  const Matrix before = c.matrix();
  matmul<T, T>({.form = Product::nt,
                .a = a.view().cols_from(128, 264),
                .b = b.view().rows_from(16, 150).cols_from(8, 264),
                .c = c.view().cols_from(20, 150)},
               q);
  const Matrix got = c.matrix();
  for (int64_t m = 0; m < 16; ++m) {
    for (int64_t n = 0; n < 300; ++n) {
      double want = 0;
      if (n < 20 || n >= 170) {
        want = before.at(m, n);
      } else {
        for (int64_t k = 0; k < 264; ++k) want += ma.at(m, 128 + k) * mb.at(n - 4, 8 + k);
        want = element_value(make_element<T>(want));
      }
      ASSERT_EQ(got.at(m, n), want) << m << "," << n;
    }
  }
}

// Products that read what the one before wrote, queued at once: a kernel that starts early must still wait.
// Depths that one block holds and that blocks share, also right behind each other.
TYPED_TEST(FewRows, Chains) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  constexpr int64_t kWidths[] = {4096, 520, 5120, 4096, 8200, 64};
  std::vector<DeviceArray<T>> weights;
  for (size_t i = 0; i + 1 < std::size(kWidths); ++i) {
    const double scale = 1 / std::sqrt(static_cast<double>(kWidths[i]));
    weights.emplace_back(q, random_matrix<T>(20 + static_cast<int>(i), kWidths[i + 1], kWidths[i], scale));
  }
  const DeviceArray<T> in(q, random_matrix<T>(11, 16, kWidths[0]));
  const auto chain = [&](bool one_by_one) {
    std::vector<DeviceArray<T>> out;
    for (size_t i = 0; i < weights.size(); ++i) out.emplace_back(q, 16, kWidths[i + 1]);
    synchronize(q);
    for (size_t i = 0; i < weights.size(); ++i) {
      matmul<T, T>({.form = Product::nt,
                    .a = (i == 0 ? in : out[i - 1]).view(),
                    .b = weights[i].view(),
                    .c = out[i].view(),
                    .b_settled = true},
                   q);
      if (one_by_one) synchronize(q);
    }
    return out;
  };
  const std::vector<DeviceArray<T>> want = chain(true);
  for (int repeat = 0; repeat < 10; ++repeat) {
    const std::vector<DeviceArray<T>> got = chain(false);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(same_bits(got[i], want[i])) << repeat << "," << i;
  }
}

// Fused, where there is a kernel: the same bits as one after the other.
TYPED_TEST(FewRows, Swiglu) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const Shape& s : {Shape{1, 8, 64}, Shape{16, 1059, 72}, Shape{16, 1536, 4096}, Shape{7, 2120, 2560},
                         Shape{16, 40, 5120}, Shape{17, 64, 64}}) {
    SCOPED_TRACE(::testing::PrintToString(s));
    const DeviceArray<T> a(q, random_matrix<T>(9, s.m, s.k)),
        b(q, random_matrix<T>(10, 2 * s.n, s.k, 1 / std::sqrt(static_cast<double>(s.k))));
    const DeviceArray<T> gate_up(q, s.m, 2 * s.n), act(q, s.m, s.n), fused(q, s.m, s.n);
    const bool has = few_rows_swiglu<T>({a.view(), b.view(), fused.view(), true}, q);
    EXPECT_EQ(has, sizeof(T) == 2 && s.m <= 16 && s.k <= 4096);
    if (!has) continue;
    matmul<T, T>({.form = Product::nt, .a = a.view(), .b = b.view(), .c = gate_up.view()}, q);
    swiglu_fwd<T>({.gate_up = gate_up.view(), .act = act.view()}, q);
    EXPECT_TRUE(same_bits(act, fused));
    EXPECT_TRUE(fused.intact());
  }
}

}  // namespace
}  // namespace slip::testing
