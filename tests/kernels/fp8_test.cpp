#include "kernels/fp8.hpp"

#include <algorithm>
#include <limits>

#include "support/gpu_required.hpp"
#include "support/head_loss_case.hpp"
#include "support/kernel_test.hpp"

namespace slip::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A matrix in e4m3 on the queue's side, rows 16 bytes apart from a multiple of 16, as products ask.
class Codes {
 public:
  Codes(const Queue& q, int64_t rows, int64_t k)
      : k_(k), codes_(q, rows, (k + 15) / 16 * 16 + (rows > 1 ? 24 : 16)), scale_(q, 1, rows) {}
  Fp8Rows rows() const {
    const View2<uint8_t> v = codes_.view();
    return {{reinterpret_cast<E4m3*>(v.data), v.rows, k_, v.stride}, scale_.data()};
  }
  std::vector<E4m3> codes() const {
    std::vector<E4m3> out;
    const std::vector<uint8_t> all = codes_.elements();
    const size_t width = static_cast<size_t>(codes_.view().cols);
    for (size_t i = 0; i < all.size(); ++i) {
      if (i % width < static_cast<size_t>(k_))
        out.push_back({all[i]});
      else
        EXPECT_EQ(all[i], 0xa5) << "written beyond K";
    }
    return out;
  }
  std::vector<float> scales() const { return scale_.elements(); }
  Matrix values() const {
    const std::vector<E4m3> c = codes();
    const std::vector<float> s = scales();
    Matrix m(static_cast<int64_t>(s.size()), k_);
    for (size_t i = 0; i < c.size(); ++i)
      m.values[i] = static_cast<double>(to_float(c[i])) * static_cast<double>(s[i / static_cast<size_t>(k_)]);
    return m;
  }

 private:
  int64_t k_;
  DeviceArray<uint8_t> codes_;
  DeviceArray<float> scale_;
};

struct Shape {
  int64_t rows, cols;
};
constexpr Shape kShapes[] = {{1, 1},     {3, 5},     {7, 24},    {16, 16},  {127, 129},
                             {128, 128}, {129, 264}, {300, 520}, {1, 4096}, {1025, 8}};

// One row of the copy: scale from the largest magnitude, codes of x * (448 / largest).
void expect_row(const std::vector<float>& x, const E4m3* codes, float scale, const std::string& what) {
  float most = std::ldexp(1.0f, -100);
  bool nan = false;
  for (const float v : x) {
    nan |= std::isnan(v);
    most = std::max(most, std::abs(v));
  }
  if (nan) {
    EXPECT_TRUE(std::isnan(scale)) << what;
    return;
  }
  EXPECT_EQ(scale, most / 448.0f) << what;
  for (size_t k = 0; k < x.size(); ++k)
    ASSERT_EQ(codes[k].bits, to_e4m3(x[k] * (448.0f / most)).bits) << what << ", k " << k << ", x " << x[k];
}
void expect_copies(const Matrix& x, const Codes& rows, const Codes& columns) {
  const auto row_codes = rows.codes(), column_codes = columns.codes();
  const auto row_scales = rows.scales(), column_scales = columns.scales();
  const int64_t padded = fp8_padded(x.rows);
  for (int64_t r = 0; r < x.rows; ++r) {
    std::vector<float> v;
    for (int64_t c = 0; c < x.cols; ++c) v.push_back(static_cast<float>(x.at(r, c)));
    expect_row(v, row_codes.data() + r * x.cols, row_scales[static_cast<size_t>(r)],
               "row " + std::to_string(r));
  }
  for (int64_t c = 0; c < x.cols; ++c) {
    std::vector<float> v;
    for (int64_t r = 0; r < x.rows; ++r) v.push_back(static_cast<float>(x.at(r, c)));
    const E4m3* const codes = column_codes.data() + c * padded;
    expect_row(v, codes, column_scales[static_cast<size_t>(c)], "column " + std::to_string(c));
    for (int64_t r = x.rows; r < padded; ++r) ASSERT_EQ(codes[r].bits, 0) << "padding of column " << c;
  }
}

TEST(NoFp8, HoppersAloneCompute) {
  EXPECT_EQ(no_fp8("NVIDIA H200", {9, 0}), "");
  const std::string said = no_fp8("NVIDIA B200", {10, 0});
  for (const char* part : {"NVIDIA B200", "sm_100", "sm_90", "use bf16"})
    EXPECT_NE(said.find(part), std::string::npos) << said;
  EXPECT_NE(no_fp8("NVIDIA A100-SXM4-80GB", {8, 0}), "");
  EXPECT_NE(no_fp8("NVIDIA L40S", {8, 9}), "");  // has fp8 products, but none with a scale a row
}

template <class B> class Fp8 : public KernelTest<B> {
  void SetUp() override { skip_without_fp8(B::kDevice); }
};
TYPED_TEST_SUITE(Fp8, BackEnds, BackEndName);

TYPED_TEST(Fp8, QuantizesToTheBit) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(::testing::Message() << s.rows << "x" << s.cols);
    // Rows and columns of very different size: a scale for all would flush most of them to zero.
    Matrix m = random_matrix<T>(1, s.rows, s.cols);
    for (int64_t r = 0; r < s.rows; ++r) {
      for (int64_t c = 0; c < s.cols; ++c) m.at(r, c) *= std::ldexp(1.0, static_cast<int>(r % 40 - c % 30));
    }
    if (s.rows > 2) {
      for (int64_t c = 0; c < s.cols; ++c) m.at(1, c) = 0;
      for (int64_t r = 0; r < s.rows; ++r) m.at(r, s.cols - 1) = r % 2 ? -0.0 : 1e-36;
    }
    const DeviceArray<T> x(q, m);
    const DeviceArray<uint32_t> largest(q, 1, s.rows + s.cols);
    const Codes rows(q, s.rows, s.cols), columns(q, s.cols, fp8_padded(s.rows));
    quantize_fp8<T>({x.view(), rows.rows(), columns.rows(), largest.data()}, q);
    expect_copies(x.matrix(), rows, columns);
    // One alone.
    const Codes only(q, s.rows, s.cols), turned(q, s.cols, fp8_padded(s.rows));
    quantize_fp8<T>({x.view(), only.rows(), {}, largest.data()}, q);
    quantize_fp8<T>({x.view(), {}, turned.rows(), largest.data()}, q);
    EXPECT_EQ(only.codes(), rows.codes());
    EXPECT_EQ(only.scales(), rows.scales());
    EXPECT_EQ(turned.codes(), columns.codes());
    EXPECT_EQ(turned.scales(), columns.scales());
    EXPECT_TRUE(largest.intact());
  }
}

// What is not finite makes every product with its row NaN; the other rows do not notice.
TYPED_TEST(Fp8, NanAndInfinityPassOn) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const double bad : {std::nan(""), kInfinity, -kInfinity}) {
    Matrix m = random_matrix<T>(2, 20, 32);
    m.at(3, 7) = bad;
    const DeviceArray<T> x(q, m);
    const DeviceArray<uint32_t> largest(q, 1, 52);
    const Codes rows(q, 20, 32), columns(q, 32, 32);
    quantize_fp8<T>({x.view(), rows.rows(), columns.rows(), largest.data()}, q);
    const Matrix r = rows.values(), c = columns.values();
    for (int64_t i = 0; i < 20; ++i) {
      int64_t finite = 0;
      for (int64_t k = 0; k < 32; ++k) finite += std::isfinite(r.at(i, k));
      EXPECT_EQ(finite, i == 3 ? 0 : 32) << bad << ", row " << i;
    }
    for (int64_t i = 0; i < 32; ++i) {
      int64_t finite = 0;
      for (int64_t k = 0; k < 20; ++k) finite += std::isfinite(c.at(i, k));
      EXPECT_EQ(finite, i == 7 ? 0 : 20) << bad << ", column " << i;
    }
  }
}

template <class T, class Out> void check_product(const Queue& q) {
  struct Sizes {
    int64_t m, n, k;
  };
  for (const Sizes& s : {Sizes{1, 16, 16}, Sizes{17, 48, 32}, Sizes{128, 128, 128}, Sizes{130, 272, 528}}) {
    for (const bool accumulate : {false, true}) {
      for (const bool fast : {false, true}) {
        SCOPED_TRACE(::testing::Message() << s.m << "x" << s.n << "x" << s.k << (accumulate ? " +=" : " =")
                                          << (fast ? " fast" : ""));
        const DeviceArray<T> a(q, random_matrix<T>(3, s.m, s.k)), b(q, random_matrix<T>(4, s.n, s.k, 0.05));
        const DeviceArray<uint32_t> largest(q, 1, std::max(s.m, s.n) + s.k);
        const Codes qa(q, s.m, s.k), qb(q, s.n, s.k);
        quantize_fp8<T>({a.view(), qa.rows(), {}, largest.data()}, q);
        quantize_fp8<T>({b.view(), qb.rows(), {}, largest.data()}, q);
        const Matrix va = qa.values(), vb = qb.values(), start = random_matrix<Out>(5, s.m, s.n);
        Matrix want = accumulate ? start : Matrix(s.m, s.n);
        for (int64_t i = 0; i < s.m; ++i) {
          for (int64_t j = 0; j < s.n; ++j) {
            for (int64_t k = 0; k < s.k; ++k) want.at(i, j) += va.at(i, k) * vb.at(j, k);
          }
        }
        const DeviceArray<Out> c(q, start), again(q, start);
        fp8_matmul<T, Out>({qa.rows(), qb.rows(), c.view(), accumulate, fast}, q);
        fp8_matmul<T, Out>({qa.rows(), qb.rows(), again.view(), accumulate, fast}, q);
        EXPECT_TRUE(same_bits(c, again));
        if (!q.on_cpu()) {  // sums of about 14 bits; else cuBLASLt adds them to fp32 every few steps
          EXPECT_LT(relative_error(c.values(), want.values), fast ? 5e-3 : (sizeof(T) == 2 ? 5e-3 : 2e-4));
        } else {
          EXPECT_TRUE(agrees_as<T>(c, want));
        }
      }
    }
  }
}
TYPED_TEST(Fp8, Product) {
  using T = typename TypeParam::Type;
  check_product<T, T>(this->queue());
  if constexpr (!__is_same(T, Acc<T>)) check_product<T, Acc<T>>(this->queue());
}

// The three products of a linear layer through both copies, against the products of what was quantized.
TYPED_TEST(Fp8, ALayerAndItsGradients) {
  using T = typename TypeParam::Type;
  using A = Acc<T>;
  const Queue& q = this->queue();
  const int64_t m = 40, in = 64, out = 96;
  const Matrix mx = random_matrix<T>(6, m, in), mw = random_matrix<T>(7, out, in, 0.1),
               mdy = random_matrix<T>(8, m, out);
  const DeviceArray<T> x(q, mx), w(q, mw), dy(q, mdy), y(q, m, out), dx(q, m, in);
  const DeviceArray<A> dw(q, Matrix(out, in));
  const DeviceArray<uint32_t> largest(q, 1, 256);
  const Codes x_rows(q, m, in), x_columns(q, in, fp8_padded(m)), w_rows(q, out, in), w_columns(q, in, out),
      dy_rows(q, m, out), dy_columns(q, out, fp8_padded(m));
  quantize_fp8<T>({x.view(), x_rows.rows(), x_columns.rows(), largest.data()}, q);
  quantize_fp8<T>({w.view(), w_rows.rows(), w_columns.rows(), largest.data()}, q);
  quantize_fp8<T>({dy.view(), dy_rows.rows(), dy_columns.rows(), largest.data()}, q);
  fp8_matmul<T, T>({x_rows.rows(), w_rows.rows(), y.view()}, q);
  fp8_matmul<T, T>({dy_rows.rows(), w_columns.rows(), dx.view()}, q);
  fp8_matmul<T, A>({dy_columns.rows(), x_columns.rows(), dw.view(), true}, q);
  Matrix want_y(m, out), want_dx(m, in), want_dw(out, in);
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t i = 0; i < in; ++i) {
        want_y.at(r, o) += mx.at(r, i) * mw.at(o, i);
        want_dx.at(r, i) += mdy.at(r, o) * mw.at(o, i);
        want_dw.at(o, i) += mdy.at(r, o) * mx.at(r, i);
      }
    }
  }
  // Three bits of mantissa: each operand is off by 2.6 % in the mean square at most.
  for (const auto& [got, want] :
       {std::pair{y.values(), want_y.values}, std::pair{dx.values(), want_dx.values},
        std::pair{dw.values(), want_dw.values}}) {
    EXPECT_LT(relative_error(got, want), 0.05);
    EXPECT_GT(relative_error(got, want), 0.005);
  }
}

// The loss and its gradient through a head in fp8: near, and not the same; rows of weight 0 and NaN as ever.
TYPED_TEST(Fp8, TheHead) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const LossRule& rule : {LossRule{LossKind::decay, 7, 0.5f}, LossRule{LossKind::dpace, 7, 0.5f}}) {
    LossProblem p = make_loss_problem<T>(9, 16, 128, 1040, rule);
    const LossRun<T> plain(p, 40, q), run(p, 40, q, true, true), again(p, 40, q, true, true);
    EXPECT_TRUE(same_bits(run.dhidden, again.dhidden) && same_bits(run.nll, again.nll));
    EXPECT_LT(relative_error(run.nll.values(), plain.nll.values()), 0.03);
    EXPECT_GT(relative_error(run.nll.values(), plain.nll.values()), 1e-5);
    EXPECT_LT(relative_error(run.dhidden.values(), plain.dhidden.values()), 0.12);
    EXPECT_GT(relative_error(run.dhidden.values(), plain.dhidden.values()), 0.005);
    const LossRun<T> no_gradient(p, 40, q, false, true);
    EXPECT_TRUE(same_bits(run.nll, no_gradient.nll));

    if (rule.kind == LossKind::dpace) continue;  // weights of a block depend on all of it
    const int row = p.valid_rows()[3];
    p.hidden.at(row, 5) = std::nan("");
    const LossRun<T> bad(p, 40, q, true, true);
    const std::vector<double> dhidden = bad.dhidden.values();
    for (const int r : p.valid_rows())
      EXPECT_EQ(std::isnan(dhidden[static_cast<size_t>(r) * 128]), r == row) << r;
  }
}

}  // namespace
}  // namespace slip::testing
