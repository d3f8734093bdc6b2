#include "kernels/attention.hpp"
#include "support/kernel_test.hpp"

namespace slip::testing {
namespace {

struct Case {
  int heads, kv_heads, head_dim;
  std::vector<int> cu;
};
void PrintTo(const Case& c, std::ostream* os) {
  *os << c.heads << "/" << c.kv_heads << " heads of " << c.head_dim << ", documents at "
      << ::testing::PrintToString(c.cu);
}
const Case kCases[] = {
    {1, 1, 16, {0, 1}},       {2, 1, 32, {0, 1, 2, 3}},  // one-token documents
    {4, 4, 64, {0, 63}},                                 // a tile of keys, one less, one more
    {4, 2, 64, {0, 64}},      {4, 1, 64, {0, 65}},         {8, 1, 128, {0, 127, 128, 150}},
    {2, 1, 256, {0, 70, 79}}, {6, 2, 64, {0, 33, 33, 90}},  // an empty document, a group of 3
    {4, 2, 128, {0, 129}},
};

struct Problem {
  AttentionShape shape;
  Matrix q, k, v;
};
template <class T> Problem make_problem(const Case& c, uint64_t seed) {
  const int64_t tokens = c.cu.back();
  return {{c.heads, c.kv_heads, c.head_dim, 1 / std::sqrt(static_cast<float>(c.head_dim))},
          random_matrix<T>(seed, tokens, int64_t{c.heads} * c.head_dim),
          random_matrix<T>(seed + 1, tokens, int64_t{c.kv_heads} * c.head_dim),
          random_matrix<T>(seed + 2, tokens, int64_t{c.kv_heads} * c.head_dim)};
}
template <class T> DeviceArray<T> run(const Problem& p, const std::vector<int>& cu, const Queue& queue) {
  const DeviceArray<T> q(queue, p.q), k(queue, p.k), v(queue, p.v);
  DeviceArray<T> out(queue, p.q.rows, p.q.cols);
  const DeviceArray<int> dcu(queue, row_of(cu));
  causal_attention_fwd<T>({p.shape, q.view(), k.view(), v.view(), dcu.data(), cu.data(),
                           static_cast<int>(cu.size()) - 1, out.view()},
                          queue);
  EXPECT_TRUE(out.intact());  // waits
  return out;
}

template <class B> class CausalAttention : public KernelTest<B> {};
TYPED_TEST_SUITE(CausalAttention, BackEnds, BackEndName);

TYPED_TEST(CausalAttention, AgreesWithReference) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Problem p = make_problem<T>(c, 1);
    Matrix want(p.q.rows, p.q.cols);
    causal_attention_fwd_ref<double>({p.shape, p.q.view(), p.k.view(), p.v.view(), c.cu.data(), c.cu.data(),
                                      static_cast<int>(c.cu.size()) - 1, want.view()});
    const DeviceArray<T> out = run<T>(p, c.cu, q);
    EXPECT_TRUE(agrees(out, want));
    EXPECT_TRUE(same_bits(out, run<T>(p, c.cu, q)));
  }
}

// Token t reaches tokens t.. of its document and nobody else, bit by bit; the first token's output is its own
// v.
TYPED_TEST(CausalAttention, WhoSeesWhom) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  const Case c{1, 1, 16, {0, 5, 6, 12}};
  const Problem p = make_problem<T>(c, 4);
  const Matrix before = run<T>(p, c.cu, q).matrix();
  for (size_t d = 0; d + 1 < c.cu.size(); ++d) {
    for (int t = c.cu[d]; t < c.cu[d + 1]; ++t) {
      Problem changed = p;
      for (int64_t i = 0; i < 16; ++i) changed.v.at(t, i) += 8;
      const Matrix after = run<T>(changed, c.cu, q).matrix();
      for (int row = 0; row < c.cu.back(); ++row) {
        bool differs = false;
        for (int64_t i = 0; i < 16; ++i) differs = differs || after.at(row, i) != before.at(row, i);
        EXPECT_EQ(differs, row >= t && row < c.cu[d + 1]) << "token " << t << ", row " << row;
      }
    }
    for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(before.at(c.cu[d], i), p.v.at(c.cu[d], i));
  }
}

TYPED_TEST(CausalAttention, Nothing) {
  using T = typename TypeParam::Type;
  const std::vector<int> cu = {0};
  const Problem p = make_problem<T>({2, 1, 64, cu}, 5);
  EXPECT_TRUE(run<T>(p, cu, this->queue()).intact());
  const std::vector<int> empty = {0, 0};
  EXPECT_TRUE(run<T>(p, empty, this->queue()).intact());
}

}  // namespace
}  // namespace slip::testing
