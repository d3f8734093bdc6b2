// The comparison itself can fail.
#include "support/near.hpp"

#include <cstring>
#include <limits>
#include <vector>

#include "support/device_array.hpp"
#include "support/queue.hpp"

namespace slip::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

template <class T> class Near : public ::testing::Test {};
using Types = ::testing::Types<float, double, Bf16>;
TYPED_TEST_SUITE(Near, Types);

TYPED_TEST(Near, CatchesOneElementOffByTwiceTheTolerance) {
  const Tolerance tol = kTol<TypeParam>;
  const std::vector<double> want = {1, -2, 0, 3, 0.5};
  EXPECT_TRUE(near(want, want, tol.abs, tol.rel));
  for (size_t i = 0; i < want.size(); ++i) {
    for (const double sign : {-1.0, 1.0}) {
      std::vector<double> got = want;
      got[i] += sign * 0.5 * (tol.abs + tol.rel * std::abs(want[i]));
      EXPECT_TRUE(near(got, want, tol.abs, tol.rel)) << i;
      got[i] = want[i] + sign * 2 * (tol.abs + tol.rel * std::abs(want[i]));
      EXPECT_FALSE(near(got, want, tol.abs, tol.rel)) << i;
    }
  }
}

TYPED_TEST(Near, CatchesANormThatEveryElementAloneWouldPass) {
  const Tolerance tol = kTol<TypeParam>;
  const std::vector<double> want(100, 1.0);
  EXPECT_TRUE(near(std::vector<double>(100, 1 + 0.5 * tol.norm), want, tol));
  EXPECT_FALSE(near(std::vector<double>(100, 1 + 2 * tol.norm), want, tol));
  EXPECT_TRUE(near(std::vector<double>(100, 1 + 2 * tol.norm), want, tol.abs, tol.rel));
}

TEST(NearTest, NanAndInfinityFail) {
  const std::vector<double> one = {1}, nan = {kNan}, inf = {kInf};
  EXPECT_FALSE(near(nan, one, kTol<Bf16>));
  EXPECT_FALSE(near(one, nan, kTol<Bf16>));
  EXPECT_FALSE(near(nan, nan, kTol<Bf16>));
  EXPECT_FALSE(near(inf, one, kTol<Bf16>));
  EXPECT_FALSE(near(inf, inf, kTol<Bf16>));
}

TEST(NearTest, NothingToCompareFails) {
  const std::vector<double> none;
  EXPECT_FALSE(near(none, none, 1, 1));
}

TEST(NearTest, UnequalLengthsFail) {
  EXPECT_FALSE(near(std::vector<double>{1, 2}, std::vector<double>{1}, 1, 1));
  EXPECT_FALSE(near(std::vector<double>{1}, std::vector<double>{1, 2}, 1, 1));
}

TEST(NearTest, SaysWhichElementAndBothValues) {
  const std::string message = near(std::vector<double>{1, 2.5}, std::vector<double>{1, 2}, 0, 0).message();
  EXPECT_NE(message.find("element 1"), std::string::npos) << message;
  EXPECT_NE(message.find("2.5"), std::string::npos) << message;
  EXPECT_NE(message.find("want 2"), std::string::npos) << message;
}

TEST(NearTest, ZeroWantNeedsZeroGotOfTheNorm) {
  const std::vector<double> zero(3, 0.0);
  EXPECT_TRUE(near(zero, zero, kTol<float>));
  EXPECT_FALSE(near(std::vector<double>{0, 1e-9, 0}, zero, kTol<float>));
}

// The arrays that tests hand to kernels.
template <class T> class Array : public ::testing::Test {};
using ArrayTypes = ::testing::Types<float, double, Bf16, int, uint8_t>;
TYPED_TEST_SUITE(Array, ArrayTypes);

TYPED_TEST(Array, HoldsValuesInAStridedViewThatDoesNotStartAtTheAllocation) {
  const TestQueue queue = make_queue(Device::cpu);
  DeviceArray<TypeParam> a(queue, Matrix(2, 3, {1, 2, 3, 4, 5, 6}));
  EXPECT_GT(a.view().stride, 3);
  EXPECT_EQ(a.values(), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  a.view().at(1, 2) = make_element<TypeParam>(9);
  EXPECT_EQ(a.values()[5], 9);
  EXPECT_TRUE(a.intact());
}

TYPED_TEST(Array, SeesAWriteBesideTheView) {
  const TestQueue queue = make_queue(Device::cpu);
  for (const int64_t where :
       {int64_t{-1}, int64_t{3}, int64_t{6}}) {  // before, between the rows, after (+ gap)
    DeviceArray<TypeParam> a(queue, 2, 3);
    EXPECT_TRUE(a.intact());
    const int64_t at = where == 6 ? a.view().stride + 3 : where;
    a.view().data[at] = make_element<TypeParam>(0);
    EXPECT_FALSE(a.intact()) << where;
  }
}

TYPED_TEST(Array, OutputsStartPoisoned) {
  if constexpr (std::is_integral_v<TypeParam>) {
    GTEST_SKIP() << "integers have no NaN";
  } else {
    const TestQueue queue = make_queue(Device::cpu);
    for (const double x : DeviceArray<TypeParam>(queue, 4, 5).values()) EXPECT_TRUE(std::isnan(x));
  }
}

}  // namespace
}  // namespace slip::testing
