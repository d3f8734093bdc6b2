#include "kernels/rmsnorm.hpp"

#include "support/finite_difference.hpp"
#include "support/kernel_test.hpp"

namespace slip::testing {
namespace {

struct Shape {
  int64_t rows, hidden;
};
// 2560 is a published width, 16384 the widest of the CUDA kernels, 130 no multiple of anything, 529 rows are
// one more than there are partial sums of a gain's gradient.
constexpr Shape kShapes[] = {{1, 8}, {5, 130}, {7, 64}, {8, 264}, {33, 2560}, {2, 16384}, {529, 64}};
constexpr float kEps = 1e-6f;

struct Forward {
  Matrix y, inv_rms;
};
// offset: 1 for zero-centred gains
Forward reference(const Matrix& x, const Matrix& gain, double offset = 0) {
  Forward f{Matrix(x.rows, x.cols), Matrix(1, x.rows)};
  for (int64_t r = 0; r < x.rows; ++r) {
    double squares = 0;
    for (int64_t c = 0; c < x.cols; ++c) squares += x.at(r, c) * x.at(r, c);
    const double inv = 1 / std::sqrt(squares / static_cast<double>(x.cols) + kEps);
    f.inv_rms.at(0, r) = inv;
    for (int64_t c = 0; c < x.cols; ++c) f.y.at(r, c) = x.at(r, c) * inv * (offset + gain.at(0, c));
  }
  return f;
}

template <class B> class RmsNorm : public KernelTest<B> {};
TYPED_TEST_SUITE(RmsNorm, BackEnds, BackEndName);

TYPED_TEST(RmsNorm, Forward) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const auto [rows, hidden] : kShapes) {
    SCOPED_TRACE(::testing::Message() << rows << "x" << hidden);
    const Matrix mx = random_matrix<T>(1, rows, hidden), mg = random_matrix<T>(2, 1, hidden, 0.25, 1);
    const Forward want = reference(mx, mg);
    const DeviceArray<T> x(q, mx), gain(q, mg), y(q, rows, hidden), again(q, rows, hidden);
    const DeviceArray<Acc<T>> inv(q, 1, rows);
    rmsnorm_fwd<T>({.x = x.view(), .gain = gain.data(), .eps = kEps, .y = y.view(), .inv_rms = inv.data()},
                   q);
    EXPECT_TRUE(agrees(y, want.y));
    EXPECT_TRUE(agrees_as<T>(inv, want.inv_rms));
    rmsnorm_fwd<T>({.x = x.view(), .gain = gain.data(), .eps = kEps, .y = again.view()}, q);
    EXPECT_TRUE(same_bits(y, again));
    rmsnorm_fwd<T>({.x = x.view(), .gain = gain.data(), .eps = kEps, .y = x.view()}, q);  // in place
    EXPECT_TRUE(same_bits(x, y));
  }
}

TYPED_TEST(RmsNorm, AddsThenNormalises) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const auto [rows, hidden] : kShapes) {
    SCOPED_TRACE(::testing::Message() << rows << "x" << hidden);
    const Matrix mx = random_matrix<T>(3, rows, hidden), ma = random_matrix<T>(4, rows, hidden);
    const Matrix mg = random_matrix<T>(5, 1, hidden, 0.25, 1), msum = rounded<T>(plus(mx, ma));
    const DeviceArray<T> x(q, mx), add(q, ma), gain(q, mg), sum(q, rows, hidden), y(q, rows, hidden);
    const DeviceArray<Acc<T>> inv(q, 1, rows);
    rmsnorm_fwd<T>({.x = x.view(),
                    .add = add.view(),
                    .sum = sum.view(),
                    .gain = gain.data(),
                    .eps = kEps,
                    .y = y.view(),
                    .inv_rms = inv.data()},
                   q);
    EXPECT_EQ(sum.values(), msum.values);  // one addition: one rounding
    EXPECT_TRUE(agrees(y, reference(msum, mg).y));
    // The sum over x, and no y wanted.
    rmsnorm_fwd<T>({.x = x.view(), .add = add.view(), .sum = x.view(), .gain = gain.data(), .eps = kEps}, q);
    EXPECT_TRUE(same_bits(x, sum));
  }
}

// A tap: what is normalised, as bf16, whether or not anything is added or normalised.
TYPED_TEST(RmsNorm, Captures) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const auto [rows, hidden] : kShapes) {
    SCOPED_TRACE(::testing::Message() << rows << "x" << hidden);
    const Matrix mx = random_matrix<T>(11, rows, hidden, 3), ma = random_matrix<T>(12, rows, hidden);
    const Matrix mg = random_matrix<T>(13, 1, hidden, 0.25, 1), msum = rounded<T>(plus(mx, ma));
    const DeviceArray<T> x(q, mx), add(q, ma), gain(q, mg), sum(q, rows, hidden), y(q, rows, hidden);
    const DeviceArray<Bf16> both(q, 1, rows * hidden), alone(q, 1, rows * hidden), only(q, 1, rows * hidden);
    const RmsNormFwd<T> plain{.x = x.view(), .gain = gain.data(), .eps = kEps, .y = y.view()};
    RmsNormFwd<T> a = plain;
    a.capture = alone.data();
    rmsnorm_fwd<T>(a, q);
    EXPECT_EQ(alone.values(), rounded<Bf16>(mx).values);
    EXPECT_TRUE(agrees(y, reference(mx, mg).y));
    a = plain, a.add = add.view(), a.sum = sum.view(), a.capture = both.data();
    rmsnorm_fwd<T>(a, q);
    EXPECT_EQ(both.values(), rounded<Bf16>(msum).values);
    EXPECT_EQ(sum.values(), msum.values);
    EXPECT_TRUE(agrees(y, reference(msum, mg).y));
    rmsnorm_fwd<T>({.x = x.view(), .add = add.view(), .sum = x.view(), .eps = kEps, .capture = only.data()},
                   q);
    EXPECT_TRUE(same_bits(only, both));
    EXPECT_TRUE(same_bits(x, sum));
  }
}

// One rounding, at the end: closer to the reference than a gain of 1 + w in bf16 would be.
TYPED_TEST(RmsNorm, ZeroCentredGain) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const auto [rows, hidden] : kShapes) {
    SCOPED_TRACE(::testing::Message() << rows << "x" << hidden);
    const Matrix mx = random_matrix<T>(1, rows, hidden), mg = random_matrix<T>(2, 1, hidden, 0.25);
    const Forward want = reference(mx, mg, 1);
    const DeviceArray<T> x(q, mx), gain(q, mg), y(q, rows, hidden);
    rmsnorm_fwd<T>({.x = x.view(), .gain = gain.data(), .eps = kEps, .y = y.view(), .centred = true}, q);
    EXPECT_TRUE(agrees(y, want.y));
    if constexpr (sizeof(T) == 2) {  // half a step of bf16
      EXPECT_TRUE(near(y.values(), want.y.values, 1e-6, 0x1.02p-8));
    }
  }
}

TYPED_TEST(RmsNorm, Backward) {
  using T = typename TypeParam::Type;
  using A = Acc<T>;
  const Queue& q = this->queue();
  for (const auto [rows, hidden] : kShapes) {
    SCOPED_TRACE(::testing::Message() << rows << "x" << hidden);
    const Matrix mx = random_matrix<T>(6, rows, hidden), mg = random_matrix<T>(7, 1, hidden, 0.25, 1);
    const Matrix mdy = random_matrix<T>(8, rows, hidden), mres = random_matrix<T>(9, rows, hidden);
    const Matrix start = random_matrix<A>(10, 1, hidden);
    const Matrix minv = rounded<A>(reference(mx, mg).inv_rms);
    Matrix want_dx(rows, hidden), want_dx_res(rows, hidden), want_dgain(1, hidden), ignored(1, hidden);
    RmsNormBwd<double> ref{.x = mx.view(),
                           .gain = mg.values.data(),
                           .inv_rms = minv.values.data(),
                           .dy = mdy.view(),
                           .dx = want_dx.view(),
                           .dgain = want_dgain.values.data()};
    rmsnorm_bwd_cpu(ref);
    ref.residual = mres.view(), ref.dx = want_dx_res.view(), ref.dgain = ignored.values.data();
    rmsnorm_bwd_cpu(ref);
    want_dgain = plus(want_dgain, start);  // the op adds to what is there

    const DeviceArray<T> x(q, mx), gain(q, mg), dy(q, mdy), residual(q, mres), dx(q, rows, hidden);
    const DeviceArray<A> inv(q, minv), dgain(q, start), dgain2(q, start), dgain3(q, start);
    const DeviceArray<A> scratch(q, 1, rmsnorm_bwd_scratch(rows, hidden, q.device));
    RmsNormBwd<T> a{.x = x.view(),
                    .gain = gain.data(),
                    .inv_rms = inv.data(),
                    .dy = dy.view(),
                    .dx = dx.view(),
                    .dgain = dgain.data(),
                    .scratch = scratch.data()};
    rmsnorm_bwd(a, q);
    EXPECT_TRUE(agrees(dx, want_dx));
    EXPECT_TRUE(agrees_as<T>(dgain, want_dgain));
    EXPECT_TRUE(scratch.intact());
    a.dx = {}, a.dgain = dgain2.data();  // nobody reads dx
    rmsnorm_bwd(a, q);
    EXPECT_TRUE(same_bits(dgain, dgain2));
    a.residual = residual.view(), a.dx = residual.view(),
    a.dgain = dgain3.data();  // in place of the residual
    rmsnorm_bwd(a, q);
    EXPECT_TRUE(agrees(residual, want_dx_res));
    EXPECT_TRUE(same_bits(dgain, dgain3));
    a.residual = {}, a.dx = dy.view();  // in place of dy
    rmsnorm_bwd(a, q);
    EXPECT_TRUE(same_bits(dy, dx));
  }
}

TYPED_TEST(RmsNorm, NoRows) {
  using T = typename TypeParam::Type;
  using A = Acc<T>;
  const Queue& q = this->queue();
  const DeviceArray<T> x(q, 0, 64), y(q, 0, 64), gain(q, Matrix(1, 64));
  const DeviceArray<A> dgain(q, random_matrix<A>(1, 1, 64)), same(q, random_matrix<A>(1, 1, 64)),
      inv(q, 1, 1);
  const DeviceArray<A> scratch(q, 1, rmsnorm_bwd_scratch(0, 64, q.device));
  rmsnorm_fwd<T>({.x = x.view(), .gain = gain.data(), .eps = kEps, .y = y.view()}, q);
  rmsnorm_bwd<T>({.x = x.view(),
                  .gain = gain.data(),
                  .inv_rms = inv.data(),
                  .dy = y.view(),
                  .dx = x.view(),
                  .dgain = dgain.data(),
                  .scratch = scratch.data()},
                 q);
  EXPECT_TRUE(same_bits(dgain, same));
  EXPECT_TRUE(x.intact());
}

TEST(RmsNormExample, FourNumbers) {
  const Matrix x(1, 4, {1, 2, 3, 4}), gain(1, 4, {1, 1, 1, 2});
  Matrix y(1, 4);
  rmsnorm_fwd_cpu<double>({.x = x.view(), .gain = gain.values.data(), .eps = kEps, .y = y.view()});
  EXPECT_TRUE(
      near(y.values, std::vector<double>{0.365148347, 0.730296695, 1.095445042, 2.921186779}, 1e-9, 0));
}

TEST(RmsNormGradient, EqualsFiniteDifferences) {
  Matrix x = random_matrix<double>(1, 5, 24), gain = random_matrix<double>(2, 1, 24, 0.25, 1);
  const Matrix dy = random_matrix<double>(3, 5, 24), residual = random_matrix<double>(4, 5, 24);
  Matrix y(5, 24), inv(1, 5), dx(5, 24), dgain(1, 24);
  const float eps = 0.1f;  // large enough to matter
  const auto loss = [&] {
    rmsnorm_fwd_cpu<double>(
        {.x = x.view(), .gain = gain.values.data(), .eps = eps, .y = y.view(), .inv_rms = inv.values.data()});
    return dot(y, dy) + dot(x, residual);
  };
  loss();
  rmsnorm_bwd_cpu<double>({.x = x.view(),
                           .gain = gain.values.data(),
                           .inv_rms = inv.values.data(),
                           .dy = dy.view(),
                           .residual = residual.view(),
                           .dx = dx.view(),
                           .dgain = dgain.values.data()});
  EXPECT_TRUE(near(dx.values, finite_difference(x, loss).values, kDifferenceAbs, kDifferenceRel));
  EXPECT_TRUE(near(dgain.values, finite_difference(gain, loss).values, kDifferenceAbs, kDifferenceRel));
}

}  // namespace
}  // namespace slip::testing
