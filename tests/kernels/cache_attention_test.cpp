#include "kernels/cache_attention.hpp"

#include "support/kernel_test.hpp"

namespace slip::testing {
namespace {

struct Case {
  int heads, kv_heads, head_dim, cached, tokens;
};
void PrintTo(const Case& c, std::ostream* os) {
  *os << c.heads << "/" << c.kv_heads << " heads of " << c.head_dim << ", " << c.tokens << " tokens after "
      << c.cached;
}
const Case kCases[] = {
    {1, 1, 16, 0, 1},
    {4, 2, 64, 0, 65},
    {4, 2, 64, 31, 1},
    {4, 2, 64, 32, 8},
    {8, 1, 128, 63, 16},
    {6, 2, 64, 64, 33},
    {4, 4, 32, 100, 7},
    {32, 8, 128, 77, 16},
    {2, 1, 256, 40, 3},
    {4, 2, 24, 9, 70},
    // a cache in pieces, the last one short; more than 64 rows of a key/value head; one piece for every 64
    // keys
    {8, 2, 128, 700, 16},
    {6, 1, 256, 500, 11},
    {4, 4, 64, 2090, 1},
    {2, 2, 128, 130, 100},
    {16, 1, 64, 1024, 16},
};

struct Problem {
  AttentionShape shape;
  Matrix q, k, v;
};
template <class T> Problem make_problem(const Case& c, uint64_t seed) {
  const int64_t width = int64_t{c.kv_heads} * c.head_dim;
  return {{c.heads, c.kv_heads, c.head_dim, attention_scale(c.head_dim)},
          random_matrix<T>(seed, c.tokens, int64_t{c.heads} * c.head_dim),
          random_matrix<T>(seed + 1, c.cached + c.tokens, width),
          random_matrix<T>(seed + 2, c.cached + c.tokens, width)};
}
template <class T> DeviceArray<T> run(const Problem& p, const Queue& queue) {
  const DeviceArray<T> q(queue, p.q), k(queue, p.k), v(queue, p.v);
  DeviceArray<T> out(queue, p.q.rows, p.q.cols);
  const DeviceArray<Acc<T>> scratch(queue, 1, cache_attention_scratch(p.shape, queue.device));
  cache_attention_fwd<T>({p.shape, q.view(), k.view(), v.view(), out.view(), scratch.data()}, queue);
  EXPECT_TRUE(scratch.intact());
  EXPECT_TRUE(out.intact());  // waits
  return out;
}

template <class B> class CacheAttention : public KernelTest<B> {};
TYPED_TEST_SUITE(CacheAttention, BackEnds, BackEndName);

TYPED_TEST(CacheAttention, AgreesWithReference) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Problem p = make_problem<T>(c, 1);
    Matrix want(p.q.rows, p.q.cols);
    cache_attention_fwd_ref<double>({p.shape, p.q.view(), p.k.view(), p.v.view(), want.view()});
    const DeviceArray<T> out = run<T>(p, q);
    EXPECT_TRUE(agrees(out, want));
    EXPECT_TRUE(same_bits(out, run<T>(p, q)));
  }
}

// Without scratch the cache is not shared out: another order of sums, the same answer.
TYPED_TEST(CacheAttention, WithoutScratch) {
  using T = typename TypeParam::Type;
  const Queue& queue = this->queue();
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Problem p = make_problem<T>(c, 11);
    const DeviceArray<T> q(queue, p.q), k(queue, p.k), v(queue, p.v);
    const DeviceArray<T> out(queue, p.q.rows, p.q.cols);
    cache_attention_fwd<T>({p.shape, q.view(), k.view(), v.view(), out.view()}, queue);
    EXPECT_TRUE(agrees(out, run<T>(p, queue).matrix()));
  }
}

// Keys and values of the new tokens that are given are put into the cache, which lies side by side with its
// values, and the answer has the same bits.
TYPED_TEST(CacheAttention, NewTokensAreAppended) {
  using T = typename TypeParam::Type;
  const Queue& queue = this->queue();
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Problem p = make_problem<T>(c, 21);
    const int64_t width = p.k.cols, total = p.k.rows;
    Matrix whole(total, 2 * width), lacking(total, 2 * width), added(c.tokens, 2 * width + 8);
    for (int64_t r = 0; r < total; ++r) {
      for (int64_t i = 0; i < 2 * width; ++i) {
        whole.at(r, i) = i < width ? p.k.at(r, i) : p.v.at(r, i - width);
        lacking.at(r, i) = r < c.cached ? whole.at(r, i) : 99;
        if (r >= c.cached) added.at(r - c.cached, i) = whole.at(r, i);
      }
    }
    const DeviceArray<T> q(queue, p.q), cache(queue, lacking), more(queue, added);
    const DeviceArray<T> out(queue, p.q.rows, p.q.cols);
    const DeviceArray<Acc<T>> scratch(queue, 1, cache_attention_scratch(p.shape, queue.device));
    cache_attention_fwd<T>({.shape = p.shape,
                            .q = q.view(),
                            .k = cache.view().cols_from(0, width),
                            .v = cache.view().cols_from(width, width),
                            .out = out.view(),
                            .scratch = scratch.data(),
                            .kv_new = more.view().cols_from(0, 2 * width),
                            .kv_end = cache.view().rows_from(c.cached, c.tokens)},
                           queue);
    EXPECT_TRUE(same_bits(out, run<T>(p, queue)));
    EXPECT_TRUE(same_bits(cache, DeviceArray<T>(queue, whole)));
  }
}

// The end of a document, token by token or in pieces, is what the packed op says of the whole document.
TYPED_TEST(CacheAttention, AgreesWithPackedCausalAttention) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::PrintToString(c));
    Problem p = make_problem<T>(c, 4);
    const int64_t all = p.k.rows;
    const Matrix every = random_matrix<T>(7, all, p.q.cols);
    const std::vector<int> cu = {0, static_cast<int>(all)};
    Matrix packed(all, p.q.cols);
    causal_attention_fwd_ref<double>(
        {p.shape, every.view(), p.k.view(), p.v.view(), cu.data(), cu.data(), 1, packed.view()});
    std::copy(every.values.end() - p.q.rows * p.q.cols, every.values.end(), p.q.values.begin());
    const Matrix want(p.q.rows, p.q.cols, {packed.values.end() - p.q.rows * p.q.cols, packed.values.end()});
    EXPECT_TRUE(agrees(run<T>(p, q), want));
  }
}

// New token t reads cache rows up to itself and no other, bit by bit.
TYPED_TEST(CacheAttention, WhoSeesWhom) {
  using T = typename TypeParam::Type;
  const Problem p = make_problem<T>({2, 1, 16, 5, 4}, 8);
  const Matrix before = run<T>(p, this->queue()).matrix();
  for (int64_t k = 0; k < 9; ++k) {
    Problem changed = p;
    for (int64_t i = 0; i < 16; ++i) changed.v.at(k, i) += 8;
    const Matrix after = run<T>(changed, this->queue()).matrix();
    for (int64_t t = 0; t < 4; ++t) {
      bool differs = false;
      for (int64_t i = 0; i < 32; ++i) differs = differs || after.at(t, i) != before.at(t, i);
      EXPECT_EQ(differs, k <= 5 + t) << "cache row " << k << ", token " << t;
    }
  }
}

}  // namespace
}  // namespace slip::testing
