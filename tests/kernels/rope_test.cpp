#include "kernels/rope.hpp"

#include "support/finite_difference.hpp"
#include "support/kernel_test.hpp"

namespace slip::testing {
namespace {

constexpr float kEps = 1e-6f;
constexpr int kPositions = 50;

struct Shape {
  int64_t rows;
  int heads, head_dim, rotary;
};
constexpr Shape kShapes[] = {
    {1, 1, 16, 16}, {7, 4, 32, 32}, {8, 3, 64, 16}, {9, 8, 128, 128}, {65, 2, 256, 64}};
void PrintTo(const Shape& s, std::ostream* os) {
  *os << s.rows << " rows, " << s.heads << " heads of " << s.head_dim << ", " << s.rotary << " rotate";
}

struct Table {
  Matrix cos, sin;
};
Table make_table(int rotary, double theta = 1e4) {
  Table t{Matrix(kPositions, rotary / 2), Matrix(kPositions, rotary / 2)};
  for (int p = 0; p < kPositions; ++p) {
    for (int i = 0; i < rotary / 2; ++i) {
      const double angle = p * std::pow(theta, -2.0 * i / rotary);
      t.cos.at(p, i) = std::cos(angle);
      t.sin.at(p, i) = std::sin(angle);
    }
  }
  return {rounded<float>(t.cos), rounded<float>(t.sin)};
}
Matrix positions(int64_t rows) {
  Matrix p(1, rows);
  for (int64_t r = 0; r < rows; ++r) p.at(0, r) = static_cast<double>((r * 17 + 3) % kPositions);
  return p;
}

struct Forward {
  Matrix y, inv_rms;
};
// offset: 1 for zero-centred gains
Forward reference(const Shape& s, const Matrix& x, const Matrix* gain, const Table& table,
                  const Matrix& position, double offset = 0) {
  Forward f{Matrix(s.rows, x.cols), Matrix(1, s.rows * s.heads)};
  for (int64_t r = 0; r < s.rows; ++r) {
    for (int head = 0; head < s.heads; ++head) {
      std::vector<double> n(static_cast<size_t>(s.head_dim));
      double squares = 0;
      for (int d = 0; d < s.head_dim; ++d) {
        n[static_cast<size_t>(d)] = x.at(r, head * s.head_dim + d);
        squares += n[static_cast<size_t>(d)] * n[static_cast<size_t>(d)];
      }
      const double inv = 1 / std::sqrt(squares / s.head_dim + kEps);
      f.inv_rms.at(0, r * s.heads + head) = inv;
      for (int d = 0; gain != nullptr && d < s.head_dim; ++d)
        n[static_cast<size_t>(d)] *= inv * (offset + gain->at(0, d));
      for (int d = 0; d < s.head_dim; ++d) {
        const int half = s.rotary / 2, i = d % half;
        double& y = f.y.at(r, head * s.head_dim + d);
        if (d >= s.rotary) {
          y = n[static_cast<size_t>(d)];
          continue;
        }
        const double cos = table.cos.at(static_cast<int64_t>(position.at(0, r)), i);
        const double sin = table.sin.at(static_cast<int64_t>(position.at(0, r)), i);
        const double partner =
            d < half ? -n[static_cast<size_t>(d + half)] : n[static_cast<size_t>(d - half)];
        y = n[static_cast<size_t>(d)] * cos + partner * sin;
      }
    }
  }
  return f;
}

template <class B> class HeadRope : public KernelTest<B> {};
TYPED_TEST_SUITE(HeadRope, BackEnds, BackEndName);

TYPED_TEST(HeadRope, Forward) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(::testing::PrintToString(s));
    const Matrix mx = random_matrix<T>(1, s.rows, s.heads * s.head_dim),
                 mg = random_matrix<T>(2, 1, s.head_dim, 0.25, 1);
    const Table mt = make_table(s.rotary);
    const Matrix mp = positions(s.rows);
    const DeviceArray<T> x(q, mx), gain(q, mg), y(q, mx.rows, mx.cols), plain(q, mx.rows, mx.cols);
    const DeviceArray<float> cos(q, mt.cos), sin(q, mt.sin);
    const DeviceArray<int> position(q, mp);
    const DeviceArray<Acc<T>> inv(q, 1, s.rows * s.heads);
    HeadRopeFwd<T> a{.x = x.view(),
                     .heads = s.heads,
                     .head_dim = s.head_dim,
                     .gain = gain.data(),
                     .eps = kEps,
                     .table = {cos.view(), sin.view()},
                     .position = position.data(),
                     .y = y.view(),
                     .inv_rms = inv.data()};
    head_rope_fwd(a, q);
    const Forward want = reference(s, mx, &mg, mt, mp);
    EXPECT_TRUE(agrees(y, want.y));
    EXPECT_TRUE(agrees_as<T>(inv, want.inv_rms));
    const DeviceArray<T> centred(q, mx.rows, mx.cols);
    a.centred = true, a.y = centred.view();  // gains of about 2
    head_rope_fwd(a, q);
    EXPECT_TRUE(agrees(centred, reference(s, mx, &mg, mt, mp, 1).y));
    a.centred = false;
    a.gain = nullptr, a.y = plain.view(), a.inv_rms = nullptr;  // Llama: no norm
    head_rope_fwd(a, q);
    EXPECT_TRUE(agrees(plain, reference(s, mx, nullptr, mt, mp).y));
    a.gain = gain.data(), a.y = x.view();  // in place, nothing kept
    head_rope_fwd(a, q);
    EXPECT_TRUE(same_bits(x, y));
  }
}

template <class T, class G> void check_backward(const Queue& q) {
  using A = Acc<T>;
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(::testing::PrintToString(s));
    const int64_t cols = s.heads * s.head_dim;
    const Matrix mx = random_matrix<T>(3, s.rows, cols), mg = random_matrix<T>(4, 1, s.head_dim, 0.25, 1);
    const Matrix mdy = random_matrix<G>(5, s.rows, cols), start = random_matrix<A>(6, 1, s.head_dim);
    const Table mt = make_table(s.rotary);
    const Matrix mp = positions(s.rows), minv = rounded<A>(reference(s, mx, &mg, mt, mp).inv_rms);
    const Queue cpu;
    const DeviceArray<float> host_cos(cpu, mt.cos), host_sin(cpu, mt.sin);
    const DeviceArray<int> host_position(cpu, mp);
    Matrix want_dx(s.rows, cols), want_dgain(1, s.head_dim);
    head_rope_bwd_cpu<double, double>({.x = mx.view(),
                                       .heads = s.heads,
                                       .head_dim = s.head_dim,
                                       .gain = mg.values.data(),
                                       .inv_rms = minv.values.data(),
                                       .table = {host_cos.view(), host_sin.view()},
                                       .position = host_position.data(),
                                       .dy = mdy.view(),
                                       .dx = want_dx.view(),
                                       .dgain = want_dgain.values.data()});
    want_dgain = plus(want_dgain, start);  // the op adds to what is there

    const DeviceArray<T> x(q, mx), gain(q, mg), dx(q, s.rows, cols);
    const DeviceArray<G> dy(q, mdy);
    const DeviceArray<float> cos(q, mt.cos), sin(q, mt.sin);
    const DeviceArray<int> position(q, mp);
    const DeviceArray<A> inv(q, minv), dgain(q, start), dgain2(q, start);
    const DeviceArray<A> scratch(q, 1, head_rope_bwd_scratch(s.rows, s.heads, s.head_dim, q.device));
    HeadRopeBwd<T, G> a{.x = x.view(),
                        .heads = s.heads,
                        .head_dim = s.head_dim,
                        .gain = gain.data(),
                        .inv_rms = inv.data(),
                        .table = {cos.view(), sin.view()},
                        .position = position.data(),
                        .dy = dy.view(),
                        .dx = dx.view(),
                        .dgain = dgain.data(),
                        .scratch = scratch.data()};
    head_rope_bwd(a, q);
    EXPECT_TRUE(agrees(dx, want_dx));
    EXPECT_TRUE(agrees_as<T>(dgain, want_dgain));
    EXPECT_TRUE(scratch.intact());
    if constexpr (__is_same(T, G)) {
      a.dx = dy.view(), a.dgain = dgain2.data();  // in place
      head_rope_bwd(a, q);
      EXPECT_TRUE(same_bits(dy, dx));
      EXPECT_TRUE(same_bits(dgain, dgain2));
    }
    const DeviceArray<G> again(q, mdy);
    const DeviceArray<A> dgain3(q, start);
    a.dy = again.view(), a.dx = x.view(), a.dgain = dgain3.data();  // in the place of x
    head_rope_bwd(a, q);
    EXPECT_TRUE(same_bits(x, dx));
    EXPECT_TRUE(same_bits(dgain, dgain3));
  }
}
TYPED_TEST(HeadRope, Backward) {
  using T = typename TypeParam::Type;
  check_backward<T, T>(this->queue());
  if constexpr (!__is_same(T, Acc<T>)) check_backward<T, Acc<T>>(this->queue());
}

// A quarter of a head rotates: the rest keeps its bits, and position 0 changes nothing at all.
TYPED_TEST(HeadRope, PartialRotaryLeavesTheRestAlone) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const int head_dim : {128, 256}) {
    const int rotary = head_dim / 4;
    const Matrix mx = random_matrix<T>(7, 2, head_dim);
    const Table mt = make_table(rotary);
    const DeviceArray<T> x(q, mx), y(q, 2, head_dim);
    const DeviceArray<float> cos(q, mt.cos), sin(q, mt.sin);
    const DeviceArray<int> position(q, Matrix(1, 2, {7, 0}));
    head_rope_fwd<T>({.x = x.view(),
                      .heads = 1,
                      .head_dim = head_dim,
                      .table = {cos.view(), sin.view()},
                      .position = position.data(),
                      .y = y.view()},
                     q);
    const Matrix got = y.matrix();
    int changed = 0;
    for (int d = 0; d < head_dim; ++d) {
      // In bf16 the slowest frequencies turn by less than the rounding: there only "the rest stays" is exact.
      const bool same = got.at(0, d) == mx.at(0, d);
      EXPECT_TRUE(d >= rotary ? same : !same || sizeof(T) == 2) << d;
      changed += !same;
      EXPECT_EQ(got.at(1, d), mx.at(1, d)) << d;
    }
    EXPECT_GT(changed, rotary / 3);
  }
}

// Queries and keys in one call: the same bits as one after the other, with and without gains.
TYPED_TEST(HeadRope, MoreHeads) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const Shape& s : kShapes) {
    for (const bool norm : {true, false}) {
      SCOPED_TRACE(::testing::Message() << ::testing::PrintToString(s) << (norm ? ", norm" : ""));
      const int more = 2;
      const int64_t width = s.heads * s.head_dim, other = more * s.head_dim;
      const Matrix mx = random_matrix<T>(3, s.rows, width + other);
      const Table mt = make_table(s.rotary);
      const DeviceArray<T> x(q, mx), y(q, mx.rows, mx.cols), apart(q, mx.rows, mx.cols),
          gain(q, random_matrix<T>(4, 1, s.head_dim, 0.25, 1)),
          more_gain(q, random_matrix<T>(5, 1, s.head_dim, 0.25, 1));
      const DeviceArray<float> cos(q, mt.cos), sin(q, mt.sin);
      const DeviceArray<int> position(q, positions(s.rows));
      HeadRopeFwd<T> a{.x = x.view(),
                       .heads = s.heads,
                       .head_dim = s.head_dim,
                       .gain = norm ? gain.data() : nullptr,
                       .eps = kEps,
                       .table = {cos.view(), sin.view()},
                       .position = position.data(),
                       .y = y.view(),
                       .more_heads = more,
                       .more_gain = norm ? more_gain.data() : nullptr};
      head_rope_fwd(a, q);
      a.more_heads = 0;
      a.x = x.view().cols_from(0, width), a.y = apart.view().cols_from(0, width);
      head_rope_fwd(a, q);
      a.heads = more, a.gain = a.more_gain;
      a.x = x.view().cols_from(width, other), a.y = apart.view().cols_from(width, other);
      head_rope_fwd(a, q);
      EXPECT_TRUE(same_bits(y, apart));
    }
  }
}

TYPED_TEST(HeadRope, NoRows) {
  using T = typename TypeParam::Type;
  using A = Acc<T>;
  const Queue& q = this->queue();
  const DeviceArray<T> x(q, 0, 64), y(q, 0, 64), gain(q, Matrix(1, 32));
  const DeviceArray<float> table(q, Matrix(4, 16));
  const DeviceArray<int> position(q, Matrix(1, 1));
  const DeviceArray<A> dgain(q, random_matrix<A>(1, 1, 32)), same(q, random_matrix<A>(1, 1, 32)),
      inv(q, 1, 1);
  const DeviceArray<A> scratch(q, 1, head_rope_bwd_scratch(0, 2, 32, q.device));
  head_rope_fwd<T>({.x = x.view(),
                    .heads = 2,
                    .head_dim = 32,
                    .gain = gain.data(),
                    .eps = kEps,
                    .table = {table.view(), table.view()},
                    .position = position.data(),
                    .y = y.view()},
                   q);
  head_rope_bwd<T, T>({.x = x.view(),
                       .heads = 2,
                       .head_dim = 32,
                       .gain = gain.data(),
                       .inv_rms = inv.data(),
                       .table = {table.view(), table.view()},
                       .position = position.data(),
                       .dy = y.view(),
                       .dx = x.view(),
                       .dgain = dgain.data(),
                       .scratch = scratch.data()},
                      q);
  EXPECT_TRUE(same_bits(dgain, same));
}

TEST(HeadRopeExample, FourNumbersAtPositionThree) {
  const Matrix x(1, 4, {1, 2, 3, 4});
  Matrix y(1, 4);
  const float cos[] = {std::cos(3.0f), std::cos(0.03f)}, sin[] = {std::sin(3.0f), std::sin(0.03f)};
  const int position = 0;
  head_rope_fwd_cpu<double>({.x = x.view(),
                             .heads = 1,
                             .head_dim = 4,
                             .table = {{cos, 1, 2}, {sin, 1, 2}},
                             .position = &position,
                             .y = y.view()});
  EXPECT_TRUE(
      near(y.values, std::vector<double>{-1.413352521, 1.879118067, -2.828857482, 4.058191135}, 1e-6, 0));
}

TEST(HeadRopeGradient, EqualsFiniteDifferences) {
  const Shape s{4, 3, 16, 8};
  Matrix x = random_matrix<double>(8, s.rows, 48), gain = random_matrix<double>(9, 1, 16, 0.25, 1);
  const Matrix dy = random_matrix<double>(10, s.rows, 48);
  const Table mt = make_table(s.rotary);
  const Queue cpu;
  const DeviceArray<float> cos(cpu, mt.cos), sin(cpu, mt.sin);
  const DeviceArray<int> position(cpu, positions(s.rows));
  const RopeTable table{cos.view(), sin.view()};
  Matrix y(s.rows, 48), inv(1, s.rows * s.heads), dx(s.rows, 48), dgain(1, 16);
  const auto loss = [&] {
    head_rope_fwd_cpu<double>({.x = x.view(),
                               .heads = 3,
                               .head_dim = 16,
                               .gain = gain.values.data(),
                               .eps = 0.1f,
                               .table = table,
                               .position = position.data(),
                               .y = y.view(),
                               .inv_rms = inv.values.data()});
    return dot(y, dy);
  };
  loss();
  head_rope_bwd_cpu<double, double>({.x = x.view(),
                                     .heads = 3,
                                     .head_dim = 16,
                                     .gain = gain.values.data(),
                                     .inv_rms = inv.values.data(),
                                     .table = table,
                                     .position = position.data(),
                                     .dy = dy.view(),
                                     .dx = dx.view(),
                                     .dgain = dgain.values.data()});
  EXPECT_TRUE(near(dx.values, finite_difference(x, loss).values, kDifferenceAbs, kDifferenceRel));
  EXPECT_TRUE(near(dgain.values, finite_difference(gain, loss).values, kDifferenceAbs, kDifferenceRel));
}

}  // namespace
}  // namespace slip::testing
