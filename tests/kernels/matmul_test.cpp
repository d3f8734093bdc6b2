#include "kernels/matmul.hpp"

#include "support/kernel_test.hpp"

namespace slip::testing {
namespace {

struct Shape {
  int64_t m, n, k;
};
constexpr Shape kShapes[] = {{1, 1, 1},   {3, 5, 7},     {1, 8, 8},      {1, 64, 32},    {7, 24, 40},
                             {8, 64, 64}, {65, 136, 72}, {128, 16, 256}, {129, 264, 520}};
void PrintTo(const Shape& s, std::ostream* os) { *os << s.m << "x" << s.n << "x" << s.k; }

const char* name(Product form) { return form == Product::nt ? "nt" : form == Product::nn ? "nn" : "tn"; }

// A and B of a product in the layout that `form` reads.
template <class M> Matrix left(Product form, const Shape& s, M&& make) {
  return form == Product::tn ? make(s.k, s.m) : make(s.m, s.k);
}
template <class M> Matrix right(Product form, const Shape& s, M&& make) {
  return form == Product::nt ? make(s.n, s.k) : make(s.k, s.n);
}
Matrix reference(Product form, const Matrix& a, const Matrix& b, Matrix c, bool accumulate) {
  matmul_ref<double, double>(
      {.form = form, .a = a.view(), .b = b.view(), .c = c.view(), .accumulate = accumulate});
  return c;
}

template <class T, class Out> void check(const Queue& q) {
  for (const Product form : {Product::nt, Product::nn, Product::tn}) {
    for (const Shape& s : kShapes) {
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << name(form) << " " << ::testing::PrintToString(s) << (accumulate ? " +=" : " ="));
        const double scale = 1 / std::sqrt(static_cast<double>(s.k));
        const Matrix ma = left(form, s, [](int64_t r, int64_t c) { return random_matrix<T>(1, r, c); });
        const Matrix mb =
            right(form, s, [&](int64_t r, int64_t c) { return random_matrix<T>(2, r, c, scale); });
        const Matrix mc = random_matrix<Out>(3, s.m, s.n);
        const DeviceArray<T> a(q, ma), b(q, mb);
        const DeviceArray<Out> c = accumulate ? DeviceArray<Out>(q, mc) : DeviceArray<Out>(q, s.m, s.n);
        const DeviceArray<Out> again = accumulate ? DeviceArray<Out>(q, mc) : DeviceArray<Out>(q, s.m, s.n);
        Matmul<T, Out> p{.form = form, .a = a.view(), .b = b.view(), .c = c.view(), .accumulate = accumulate};
        matmul(p, q);
        EXPECT_TRUE(agrees_as<T>(c, reference(form, ma, mb, mc, accumulate)));
        p.c = again.view();
        matmul(p, q);
        EXPECT_TRUE(same_bits(c, again));
      }
    }
  }
}

// Whole numbers: every sum is exact, so one rounding at the store is all that may happen.
template <class T, class Out> void check_exact(const Queue& q) {
  for (const Product form : {Product::nt, Product::nn, Product::tn}) {
    for (const Shape& s : kShapes) {
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << name(form) << " " << ::testing::PrintToString(s) << (accumulate ? " +=" : " ="));
        const Matrix ma = left(form, s, [](int64_t r, int64_t c) { return random_integers(4, r, c, 8); });
        const Matrix mb = right(form, s, [](int64_t r, int64_t c) { return random_integers(5, r, c, 8); });
        const Matrix mc = random_integers(6, s.m, s.n, 100);
        const DeviceArray<T> a(q, ma), b(q, mb);
        const DeviceArray<Out> c(q, mc);
        matmul<T, Out>({.form = form, .a = a.view(), .b = b.view(), .c = c.view(), .accumulate = accumulate},
                       q);
        const Matrix want = rounded<Out>(reference(form, ma, mb, mc, accumulate));
        if (accumulate &&
            sizeof(Out) == 2) {  // cuBLASLt may round the product before it adds C: one unit more
          EXPECT_TRUE(near(c.values(), want.values, 1.0, 0x1p-7));
        } else {
          EXPECT_EQ(c.values(), want.values);
        }
      }
    }
  }
}

template <class B> class MatmulTest : public KernelTest<B> {};
TYPED_TEST_SUITE(MatmulTest, BackEnds, BackEndName);

TYPED_TEST(MatmulTest, AgreesWithReference) {
  using T = typename TypeParam::Type;
  check<T, T>(this->queue());
  if constexpr (!__is_same(T, Acc<T>)) check<T, Acc<T>>(this->queue());
}

TYPED_TEST(MatmulTest, WholeNumbersAreExact) {
  using T = typename TypeParam::Type;
  check_exact<T, T>(this->queue());
  if constexpr (!__is_same(T, Acc<T>)) check_exact<T, Acc<T>>(this->queue());
}

// Column slices of wider matrices, as the stacked projections use them.
TYPED_TEST(MatmulTest, Slices) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  const Matrix ma = random_integers(7, 20, 64, 4), mb = random_integers(8, 96, 32, 4);
  const DeviceArray<T> a(q, ma), b(q, mb), c(q, random_integers(9, 20, 96, 4));
  const Matrix before = c.matrix();
  matmul<T, T>({.form = Product::nt,
                .a = a.view().cols_from(32, 32),
                .b = b.view().rows_from(16, 40),
                .c = c.view().cols_from(24, 40)},
               q);
  const Matrix got = c.matrix();
  for (int64_t m = 0; m < 20; ++m) {
    for (int64_t n = 0; n < 96; ++n) {
      double want = 0;
      for (int64_t k = 0; k < 32; ++k) want += ma.at(m, 32 + k) * mb.at((16 + n - 24 + 96) % 96, k);
      if (n < 24 || n >= 64) want = before.at(m, n);
      EXPECT_EQ(got.at(m, n), element_value(make_element<T>(want))) << m << "," << n;
    }
  }
}

TYPED_TEST(MatmulTest, Empty) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  const Matrix whole = random_integers(10, 8, 16, 4);
  const DeviceArray<T> none(q, 0, 16), b(q, whole), c(q, 0, 8), kept(q, random_integers(11, 16, 16, 4));
  matmul<T, T>({.form = Product::nt, .a = none.view(), .b = b.view(), .c = c.view()}, q);
  EXPECT_TRUE(c.intact());
  const Matrix before = kept.matrix();
  matmul<T, T>(
      {.form = Product::tn, .a = none.view(), .b = none.view(), .c = kept.view(), .accumulate = true}, q);
  EXPECT_EQ(kept.values(), before.values);
  matmul<T, T>({.form = Product::tn, .a = none.view(), .b = none.view(), .c = kept.view()}, q);
  EXPECT_EQ(kept.values(), std::vector<double>(256, 0));
}

TEST(MatmulReference, TwoByTwo) {
  const Matrix a(2, 2, {1, 2, 3, 4}), b(2, 2, {5, 6, 7, 8});
  EXPECT_EQ(reference(Product::nt, a, b, Matrix(2, 2), false).values, (std::vector<double>{17, 23, 39, 53}));
  EXPECT_EQ(reference(Product::nn, a, b, Matrix(2, 2), false).values, (std::vector<double>{19, 22, 43, 50}));
  EXPECT_EQ(reference(Product::tn, a, b, Matrix(2, 2, {1, 1, 1, 1}), true).values,
            (std::vector<double>{27, 31, 39, 45}));
}

TEST(MatmulFlops, CountsTwoAMultiplyAdd) {
  const float in[1] = {};
  float out[1];
  EXPECT_EQ(matmul_flops(Matmul<float>{Product::nt, {in, 3, 5}, {in, 7, 5}, {out, 3, 7}}), 2.0 * 3 * 7 * 5);
  EXPECT_EQ(matmul_flops(Matmul<float>{Product::tn, {in, 5, 3}, {in, 5, 7}, {out, 3, 7}}), 2.0 * 3 * 7 * 5);
}

}  // namespace
}  // namespace slip::testing
