#include "kernels/adamw.hpp"

#include "support/kernel_test.hpp"

namespace slip::testing {
namespace {

constexpr int64_t kCounts[] = {1, 7, 255, 256, 257, 5000};

// The rule in double, as Loshchilov and Hutter write it.
struct Reference {
  Matrix master, m, v;
  void step(const Matrix& grad, double lr, double beta1, double beta2, double eps, double decay, double scale,
            int t) {
    for (size_t i = 0; i < master.values.size(); ++i) {
      const double g = grad.values[i] * scale;
      m.values[i] = beta1 * m.values[i] + (1 - beta1) * g;
      v.values[i] = beta2 * v.values[i] + (1 - beta2) * g * g;
      const double mean = m.values[i] / (1 - std::pow(beta1, t)),
                   square = v.values[i] / (1 - std::pow(beta2, t));
      master.values[i] -= lr * (mean / (std::sqrt(square) + eps) + decay * master.values[i]);
    }
  }
};

template <class B> class AdamWTest : public KernelTest<B> {};
TYPED_TEST_SUITE(AdamWTest, BackEnds, BackEndName);

TYPED_TEST(AdamWTest, HundredSteps) {
  using T = typename TypeParam::Type;
  using A = Acc<T>;
  const Queue& q = this->queue();
  for (const int64_t count : kCounts) {
    SCOPED_TRACE(count);
    const Matrix start = random_matrix<A>(1, 1, count);
    Reference want{start, Matrix(1, count), Matrix(1, count)};
    const DeviceArray<A> master(q, start), m(q, Matrix(1, count)), v(q, Matrix(1, count));
    const DeviceArray<T> weight(q, 1, count);
    AdamW<T> a{.count = count,
               .master = master.data(),
               .m = m.data(),
               .v = v.data(),
               .weight = weight.data(),
               .round_weight = false,
               .lr = 1e-2f,
               .beta1 = 0.9f,
               .beta2 = 0.95f,
               .eps = 1e-8f,
               .weight_decay = 0.1f,
               .grad_scale = 0.25f};
    for (int t = 1; t <= 100; ++t) {
      const Matrix mgrad = random_matrix<A>(100 + static_cast<uint64_t>(t), 1, count);
      const DeviceArray<A> grad(q, mgrad);
      a.grad = grad.data(), a.step = t;
      adamw(a, q);
      want.step(mgrad, a.lr, a.beta1, a.beta2, a.eps, a.weight_decay, a.grad_scale, t);
    }
    EXPECT_TRUE(near(master.values(), want.master.values, kTol<A>));
    EXPECT_TRUE(near(m.values(), want.m.values, kTol<A>));
    EXPECT_TRUE(near(v.values(), want.v.values, kTol<A>));
    EXPECT_EQ(weight.values(), rounded<T>(master.matrix()).values);
  }
}

// Bias correction makes the first step lr * sign(g), whatever the size of g; eps is small against it.
TYPED_TEST(AdamWTest, FirstStepIsTheLearningRate) {
  using T = typename TypeParam::Type;
  using A = Acc<T>;
  const Queue& q = this->queue();
  const DeviceArray<A> master(q, Matrix(1, 4, {1, 1, 1, 1})), m(q, Matrix(1, 4)), v(q, Matrix(1, 4));
  const DeviceArray<A> grad(q, Matrix(1, 4, {3, -2e-4, 500, 0}));
  const DeviceArray<T> weight(q, 1, 4);
  adamw<T>({.count = 4,
            .master = master.data(),
            .m = m.data(),
            .v = v.data(),
            .grad = grad.data(),
            .weight = weight.data(),
            .round_weight = false,
            .lr = 0.125f,
            .beta1 = 0.9f,
            .beta2 = 0.95f,
            .eps = 1e-10f,
            .weight_decay = 0,
            .grad_scale = 1,
            .step = 1},
           q);
  EXPECT_TRUE(near(master.values(), std::vector<double>{0.875, 1.125, 0.875, 1}, 1e-5, 0));
}

TEST(AdamWCpu, WorkingWeightsCanKeepToBf16) {
  const float start[] = {1.001f, -0.3333f, 7};
  float master[] = {1.001f, -0.3333f, 7}, m[3] = {}, v[3] = {}, weight[3] = {};
  const float grad[3] = {};
  adamw_cpu<float>({.count = 3,
                    .master = master,
                    .m = m,
                    .v = v,
                    .grad = grad,
                    .weight = weight,
                    .round_weight = true,
                    .lr = 0.1f,
                    .beta1 = 0.9f,
                    .beta2 = 0.95f,
                    .eps = 1e-8f,
                    .weight_decay = 0,
                    .grad_scale = 1,
                    .step = 1});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(master[i], start[i]);  // no gradient, no decay: nothing moves
    EXPECT_EQ(weight[i], round_bf16(start[i]));
  }
}

template <class T> double run_sum_squares(const Matrix& values, const Queue& q) {
  const DeviceArray<Acc<T>> v(q, values);
  const DeviceArray<double> sum(q, 1, 1), scratch(q, 1, sum_squares_scratch(q.device));
  sum_squares<T>({.count = values.cols, .values = v.data(), .sum = sum.data(), .scratch = scratch.data()}, q);
  EXPECT_TRUE(scratch.intact());
  return sum.values()[0];
}
TYPED_TEST(AdamWTest, SumOfSquares) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const int64_t count :
       {int64_t{1}, int64_t{7}, int64_t{255}, int64_t{256}, int64_t{257}, int64_t{300001}}) {
    SCOPED_TRACE(count);
    const Matrix whole = random_integers(2, 1, count, 1000);  // exact in any order
    double want = 0;
    for (const double x : whole.values) want += x * x;
    EXPECT_EQ(run_sum_squares<T>(whole, q), want);
    const Matrix values = random_matrix<Acc<T>>(3, 1, count);
    const double once = run_sum_squares<T>(values, q);
    EXPECT_EQ(once, run_sum_squares<T>(values, q));
    want = 0;
    for (const double x : values.values) want += x * x;
    EXPECT_NEAR(once, want, 1e-12 * want);
  }
  EXPECT_EQ(run_sum_squares<T>(Matrix(1, 0), q), 0);
  // In fp32 this sum is infinite: the norm of a large gradient is not.
  EXPECT_EQ(run_sum_squares<T>(Matrix(1, 2, {0x1p100, 0x1p100}), q), 0x1p201);
  for (const double bad : {NAN, INFINITY}) {  // what the step looks at to see that something went wrong
    Matrix values = random_matrix<Acc<T>>(4, 1, 1000);
    values.values[777] = bad;
    EXPECT_FALSE(std::isfinite(run_sum_squares<T>(values, q)));
  }
}

}  // namespace
}  // namespace slip::testing
