#include "kernels/swiglu.hpp"

#include "support/finite_difference.hpp"
#include "support/kernel_test.hpp"

namespace slip::testing {
namespace {

struct Shape {
  int64_t rows, width;
};
constexpr Shape kShapes[] = {{1, 8}, {5, 33}, {7, 64}, {8, 264}, {9, 128}, {129, 512}};

Matrix reference(const Matrix& gate_up) {
  const int64_t width = gate_up.cols / 2;
  Matrix act(gate_up.rows, width);
  for (int64_t r = 0; r < act.rows; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      const double gate = gate_up.at(r, c);
      act.at(r, c) = gate / (1 + std::exp(-gate)) * gate_up.at(r, width + c);
    }
  }
  return act;
}

template <class B> class Swiglu : public KernelTest<B> {};
TYPED_TEST_SUITE(Swiglu, BackEnds, BackEndName);

TYPED_TEST(Swiglu, Forward) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const auto [rows, width] : kShapes) {
    SCOPED_TRACE(::testing::Message() << rows << "x" << width);
    const Matrix in = random_matrix<T>(1, rows, 2 * width);
    const DeviceArray<T> gate_up(q, in), act(q, rows, width), again(q, rows, width);
    swiglu_fwd<T>({.gate_up = gate_up.view(), .act = act.view()}, q);
    EXPECT_TRUE(agrees(act, reference(in)));
    swiglu_fwd<T>({.gate_up = gate_up.view(), .act = again.view()}, q);
    EXPECT_TRUE(same_bits(act, again));
  }
}

TYPED_TEST(Swiglu, Backward) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const auto [rows, width] : kShapes) {
    SCOPED_TRACE(::testing::Message() << rows << "x" << width);
    const Matrix in = random_matrix<T>(2, rows, 2 * width), mdact = random_matrix<T>(3, rows, width);
    Matrix want(rows, 2 * width), unused(rows, width);
    swiglu_bwd_cpu<double>(
        {.gate_up = in.view(), .dact = mdact.view(), .dgate_up = want.view(), .act = unused.view()});
    const DeviceArray<T> gate_up(q, in), dact(q, mdact), dgate_up(q, rows, 2 * width), act(q, rows, width),
        forward(q, rows, width);
    swiglu_fwd<T>({.gate_up = gate_up.view(), .act = forward.view()}, q);
    swiglu_bwd<T>(
        {.gate_up = gate_up.view(), .dact = dact.view(), .dgate_up = dgate_up.view(), .act = act.view()}, q);
    EXPECT_TRUE(agrees(dgate_up, want));
    EXPECT_TRUE(same_bits(act, forward));
    swiglu_bwd<T>(
        {.gate_up = gate_up.view(), .dact = dact.view(), .dgate_up = gate_up.view(), .act = dact.view()},
        q);  // in place
    EXPECT_TRUE(same_bits(gate_up, dgate_up));
    EXPECT_TRUE(same_bits(dact, forward));
  }
}

// exp overflows in fp32 beyond 88: the limits of silu and of its derivative are finite.
TYPED_TEST(Swiglu, LargeGates) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  const DeviceArray<T> gate_up(
      q, Matrix(1, 16, {-1000, -200, -100, 0, 100, 200, 1000, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
  const DeviceArray<T> act(q, 1, 8), dact(q, Matrix(1, 8, std::vector<double>(8, 1))), dgate_up(q, 1, 16);
  swiglu_fwd<T>({.gate_up = gate_up.view(), .act = act.view()}, q);
  EXPECT_TRUE(near(act.values(), std::vector<double>{0, 0, 0, 0, 100, 200, 1000, 0.7310585786}, kTol<T>));
  swiglu_bwd<T>(
      {.gate_up = gate_up.view(), .dact = dact.view(), .dgate_up = dgate_up.view(), .act = act.view()}, q);
  EXPECT_TRUE(
      near(dgate_up.values(),
           std::vector<double>{0, 0, 0, 0.5, 1, 1, 1, 0.9276705118, 0, 0, 0, 0, 100, 200, 1000, 0.7310585786},
           kTol<T>));
}

TYPED_TEST(Swiglu, NoRows) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  const DeviceArray<T> gate_up(q, 0, 16), act(q, 0, 8);
  swiglu_fwd<T>({.gate_up = gate_up.view(), .act = act.view()}, q);
  swiglu_bwd<T>(
      {.gate_up = gate_up.view(), .dact = act.view(), .dgate_up = gate_up.view(), .act = act.view()}, q);
  EXPECT_TRUE(gate_up.intact() && act.intact());
}

TEST(SwigluGradient, EqualsFiniteDifferences) {
  Matrix gate_up = random_matrix<double>(4, 3, 20, 2);
  const Matrix dact = random_matrix<double>(5, 3, 10);
  Matrix act(3, 10), dgate_up(3, 20);
  swiglu_bwd_cpu<double>(
      {.gate_up = gate_up.view(), .dact = dact.view(), .dgate_up = dgate_up.view(), .act = act.view()});
  const auto loss = [&] {
    swiglu_fwd_cpu<double>({.gate_up = gate_up.view(), .act = act.view()});
    return dot(act, dact);
  };
  EXPECT_TRUE(near(dgate_up.values, finite_difference(gate_up, loss).values, kDifferenceAbs, kDifferenceRel));
}

}  // namespace
}  // namespace slip::testing
