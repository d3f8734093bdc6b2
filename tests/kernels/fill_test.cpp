// Numbers made on the device: the host's, up to the rounding of their logarithms.
#include "kernels/fill.hpp"

#include "support/kernel_test.hpp"

namespace slip::testing {
namespace {

template <class B> class Fill : public KernelTest<B> {};
TYPED_TEST_SUITE(Fill, BackEnds, BackEndName);

TYPED_TEST(Fill, IsAPureFunctionOfSeedNameAndIndex) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const int64_t count : {1, 255, 256, 257, 10007}) {
    SCOPED_TRACE(::testing::Message() << count << " elements");
    const DeviceArray<T> out(q, 1, count), again(q, 1, count);
    const FillRandom<T> a{out.data(), count, 0.5f, 0.02f, 7, 11};
    fill_random(a, q);
    FillRandom<T> b = a;
    b.out = again.data();
    fill_random(b, q);
    EXPECT_TRUE(same_bits(out, again));
    Matrix want(1, count);
    for (int64_t i = 0; i < count; ++i) {
      want.at(0, i) = round_bf16(0.5f + 0.02f * random_normal(7, 11, static_cast<uint64_t>(i)));
    }
    EXPECT_TRUE(near(out.values(), want.values, 0, 0x1p-7));  // at most one step of bf16
    EXPECT_TRUE(near(out.values(), want.values, kTol<Bf16>));
  }
}

TYPED_TEST(Fill, WithoutSigmaIsConstant) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  const DeviceArray<T> out(q, 1, 1000);
  fill_random<T>({out.data(), 1000, 1, 0, 1, 2}, q);
  EXPECT_EQ(out.values(), std::vector<double>(1000, 1.0));
}

TYPED_TEST(Fill, SeedAndNameMatter) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  const DeviceArray<T> a(q, 1, 64), b(q, 1, 64), c(q, 1, 64);
  fill_random<T>({a.data(), 64, 0, 1, 1, 2}, q);
  fill_random<T>({b.data(), 64, 0, 1, 2, 2}, q);
  fill_random<T>({c.data(), 64, 0, 1, 1, 3}, q);
  EXPECT_NE(a.values(), b.values());
  EXPECT_NE(a.values(), c.values());
}

// Features are bf16 on every back end.
TYPED_TEST(Fill, FeaturesAreBf16Everywhere) {
  const Queue& q = this->queue();
  const DeviceArray<Bf16> out(q, 1, 100);
  fill_random<Bf16>({out.data(), 100, 0, 1, 3, 4}, q);
  Matrix want(1, 100);
  for (int64_t i = 0; i < 100; ++i) want.at(0, i) = round_bf16(random_normal(3, 4, static_cast<uint64_t>(i)));
  EXPECT_TRUE(near(out.values(), want.values, kTol<Bf16>));
}

}  // namespace
}  // namespace slip::testing
