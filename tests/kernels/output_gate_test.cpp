#include "kernels/output_gate.hpp"

#include "support/kernel_test.hpp"

namespace slip::testing {
namespace {

double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

template <class B> class OutputGate : public KernelTest<B> {};
TYPED_TEST_SUITE(OutputGate, BackEnds, BackEndName);

TYPED_TEST(OutputGate, Forward) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 8}, {5, 33}, {7, 256}, {130, 1536}}) {
    SCOPED_TRACE(::testing::Message() << rows << "x" << cols);
    const Matrix mx = random_matrix<T>(1, rows, cols), mg = random_matrix<T>(2, rows, cols, 3);
    Matrix want(rows, cols);
    for (size_t i = 0; i < want.values.size(); ++i) want.values[i] = mx.values[i] * sigmoid(mg.values[i]);
    const DeviceArray<T> x(q, mx), gate(q, mg), y(q, rows, cols);
    output_gate_fwd<T>({x.view(), gate.view(), y.view()}, q);
    EXPECT_TRUE(agrees(y, want));
    output_gate_fwd<T>({x.view(), gate.view(), x.view()}, q);  // in place
    EXPECT_TRUE(same_bits(x, y));
  }
}

// exp overflows in fp32 beyond 88: the limits are finite all the same.
TYPED_TEST(OutputGate, LargeGates) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  const Matrix mx(1, 8, {1, 2, 3, 4, 1, 2, 3, 4}), mg(1, 8, {-1e4, -200, -100, -95, 95, 100, 200, 1e4});
  const DeviceArray<T> x(q, mx), gate(q, mg), y(q, 1, 8), n(q, 1, 8);
  const DeviceArray<float> gain(q, Matrix(1, 8, {1, 1, 1, 1, 1, 1, 1, 1}));
  output_gate_fwd<T>({x.view(), gate.view(), y.view()}, q);
  EXPECT_TRUE(near(y.values(), std::vector<double>{0, 0, 0, 0, 1, 2, 3, 4}, 1e-30, 0));
  for (const bool sigmoid_gate : {false, true}) {
    gated_norm_fwd<T>({x.view(), gate.view(), 1, 8, gain.data(), 0, sigmoid_gate, n.view()}, q);
    std::vector<double> want(8);
    for (int64_t i = 4; i < 8; ++i)
      want[static_cast<size_t>(i)] = mx.at(0, i) / std::sqrt(7.5) * (sigmoid_gate ? 1 : mg.at(0, i));
    EXPECT_TRUE(near(n.values(), want, 1e-30, 1e-2));
  }
}

struct Shape {
  int64_t rows;
  int heads, head_dim;
};
constexpr Shape kShapes[] = {{1, 1, 8}, {3, 6, 16}, {9, 5, 20}, {21, 48, 128}, {2, 3, 256}, {67, 2, 64}};

template <class B> class GatedNorm : public KernelTest<B> {};
TYPED_TEST_SUITE(GatedNorm, BackEnds, BackEndName);

TYPED_TEST(GatedNorm, Forward) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  constexpr float kEps = 1e-6f;
  for (const Shape& s : kShapes) {
    for (const bool sigmoid_gate : {false, true}) {
      SCOPED_TRACE(::testing::Message() << s.rows << " rows of " << s.heads << " heads of " << s.head_dim);
      const int64_t cols = s.heads * s.head_dim;
      const Matrix mx = random_matrix<T>(3, s.rows, cols), mz = random_matrix<T>(4, s.rows, cols, 2),
                   mg = random_matrix<float>(5, 1, s.head_dim, 0.25, 1);
      Matrix want(s.rows, cols);
      for (int64_t r = 0; r < s.rows; ++r) {
        for (int64_t c = 0; c < cols; c += s.head_dim) {
          double squares = 0;
          for (int64_t i = 0; i < s.head_dim; ++i) squares += mx.at(r, c + i) * mx.at(r, c + i);
          const double inv = 1 / std::sqrt(squares / s.head_dim + kEps);
          for (int64_t i = 0; i < s.head_dim; ++i) {
            const double z = mz.at(r, c + i);
            want.at(r, c + i) = mg.at(0, i) * mx.at(r, c + i) * inv * sigmoid(z) * (sigmoid_gate ? 1 : z);
          }
        }
      }
      const DeviceArray<T> x(q, mx), z(q, mz), y(q, s.rows, cols);
      const DeviceArray<float> gain(q, mg);
      GatedNormFwd<T> a{x.view(), z.view(), s.heads, s.head_dim, gain.data(), kEps, sigmoid_gate, y.view()};
      gated_norm_fwd(a, q);
      EXPECT_TRUE(agrees(y, want));
      a.y = x.view();  // in place
      gated_norm_fwd(a, q);
      EXPECT_TRUE(same_bits(x, y));
    }
  }
}

TYPED_TEST(GatedNorm, NoRows) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  const DeviceArray<T> x(q, 0, 64), z(q, 0, 64);
  const DeviceArray<float> gain(q, Matrix(1, 32));
  gated_norm_fwd<T>({x.view(), z.view(), 2, 32, gain.data(), 1e-6f, false, x.view()}, q);
  output_gate_fwd<T>({x.view(), z.view(), x.view()}, q);
  EXPECT_TRUE(x.intact());
}

TEST(GatedNormExample, FourNumbers) {
  const Matrix x(1, 4, {1, 2, 3, 4}), z(1, 4, {0.5, -1, 2, 0});
  const float gain[] = {1, 1, 1, 1};
  Matrix y(1, 4);
  gated_norm_fwd_cpu<double>({x.view(), z.view(), 1, 4, gain, 1e-6f, false, y.view()});
  EXPECT_TRUE(near(y.values, std::vector<double>{0.113644998, -0.196407031, 1.929729584, 0}, 1e-9, 0));
}

}  // namespace
}  // namespace slip::testing
