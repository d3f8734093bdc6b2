// The second oracle of the target's attention: cuDNN's and ours on the same packed documents.
#include <numeric>

#include "kernels/attention_cudnn.hpp"
#include "support/device_array.hpp"
#include "support/near.hpp"
#include "support/queue.hpp"

namespace slip::testing {
namespace {

struct Heads {
  int heads, kv_heads, head_dim;
};
void PrintTo(const Heads& h, std::ostream* os) {
  *os << h.heads << "_" << h.kv_heads << "_heads_of_" << h.head_dim;
}

AttentionShape shape_of(const Heads& h) {
  return {
      .heads = h.heads, .kv_heads = h.kv_heads, .head_dim = h.head_dim, .scale = attention_scale(h.head_dim)};
}

std::vector<int> begins(const std::vector<int>& lengths) {
  std::vector<int> cu(1, 0);
  for (const int n : lengths) cu.push_back(cu.back() + n);
  return cu;
}

// Lengths around the tiles of both kernels, and an empty document.
const std::vector<int> kMixed = {1, 63, 64, 65, 0, 130, 257, 1, 200};

// q, k and v are slices of one matrix, as in the target.
struct Problem {
  AttentionShape shape;
  Matrix qkv;
  std::vector<int> cu;
  int64_t q_cols() const { return int64_t{shape.heads} * shape.head_dim; }
  int64_t kv_cols() const { return int64_t{shape.kv_heads} * shape.head_dim; }
  template <class T>
  CausalAttentionFwd<T> arguments(View2<const T> all, const int* device_cu, View2<T> out) const {
    return {.shape = shape,
            .q = all.cols_from(0, q_cols()),
            .k = all.cols_from(q_cols(), kv_cols()),
            .v = all.cols_from(q_cols() + kv_cols(), kv_cols()),
            .cu = device_cu,
            .cu_host = cu.data(),
            .documents = static_cast<int>(cu.size()) - 1,
            .out = out};
  }
};
Problem make_problem(const Heads& h, const std::vector<int>& lengths, uint64_t seed) {
  const std::vector<int> cu = begins(lengths);
  return {shape_of(h), random_matrix<Bf16>(seed, cu.back(), int64_t{h.heads + 2 * h.kv_heads} * h.head_dim),
          cu};
}

class CudnnAttentionTest : public ::testing::TestWithParam<Heads> {
 protected:
  void SetUp() override {
    if (cudnn_version().empty()) GTEST_SKIP() << "this build has no cuDNN";
  }
  // A plan for rows as DeviceArray lays them out: 8 values apart.
  CudnnAttention plan(const AttentionShape& s, int64_t max_tokens) {
    const int64_t q = int64_t{s.heads} * s.head_dim, kv = int64_t{s.kv_heads} * s.head_dim;
    return CudnnAttention("cudnn", {s, q + 2 * kv + 8, q + 8, max_tokens}, arena_);
  }
  DeviceArray<Bf16> run(const CudnnAttention* cudnn, const Problem& p) {
    const Queue& q = queue_.get();
    const DeviceArray<Bf16> qkv(q, p.qkv);
    const DeviceArray<int> cu(q, row_of(p.cu));
    DeviceArray<Bf16> out(q, p.qkv.rows, p.q_cols());
    causal_attention_fwd(p.arguments<Bf16>(qkv.view(), cu.data(), out.view()), cudnn, q);
    EXPECT_TRUE(out.intact());  // waits
    return out;
  }

  TestQueue queue_ = make_queue(Device::cuda);
  Arena arena_{Device::cuda};
};

TEST_P(CudnnAttentionTest, AgreesWithOursAndWithTheReference) {
  const CudnnAttention cudnn = plan(shape_of(GetParam()), 1000);
  EXPECT_GT(cudnn.build_seconds(), 0);
  const Problem p = make_problem(GetParam(), kMixed, 1);
  const DeviceArray<Bf16> theirs = run(&cudnn, p), ours = run(nullptr, p);
  Matrix want(p.qkv.rows, p.q_cols());
  causal_attention_fwd_ref<double>(
      p.arguments<double>(View2<const double>(p.qkv.view()), p.cu.data(), want.view()));
  EXPECT_TRUE(near(theirs.values(), want.values, kTol<Bf16>));
  EXPECT_TRUE(near(theirs.values(), ours.values(), kTol<Bf16>));
  EXPECT_EQ(theirs.values(), run(&cudnn, p).values());
}

// More documents than a call of the plan takes; then few again, with the same plan; then all the row's room.
TEST_P(CudnnAttentionTest, OnePlanServesEveryPacking) {
  constexpr int kMax = 1024;
  const CudnnAttention cudnn = plan(shape_of(GetParam()), kMax);
  std::vector<int> many(64, 3), few = {700, 5}, full = {kMax};
  for (int i = 0; i < 70; ++i) many.push_back(1 + i % 9);
  uint64_t seed = 10;
  for (const std::vector<int>& lengths :
       {many, few, full, std::vector<int>(64, 16), std::vector<int>(kMax, 1)}) {
    SCOPED_TRACE(::testing::Message() << lengths.size() << " documents");
    const Problem p = make_problem(GetParam(), lengths, ++seed);
    EXPECT_TRUE(near(run(&cudnn, p).values(), run(nullptr, p).values(), kTol<Bf16>));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudnnAttentionTest,
                         ::testing::Values(Heads{32, 8, 128}, Heads{24, 4, 256}, Heads{4, 4, 64}),
                         ::testing::PrintToStringParamName());

TEST(CudnnAttention, RefusesWhatCudnnWouldAcceptWithoutAWord) {
  if (cudnn_version().empty()) GTEST_SKIP() << "this build has no cuDNN";
  EXPECT_EQ(cudnn_attention_problem(shape_of({32, 8, 128})), "");
  EXPECT_NE(cudnn_attention_problem(shape_of({4, 4, 20})), "");
  EXPECT_NE(cudnn_attention_problem(shape_of({4, 4, 264})), "");
  EXPECT_NE(cudnn_attention_problem(shape_of({4, 3, 64})), "");
  const TestQueue queue = make_queue(Device::cuda);
  Arena arena(Device::cuda);
  const Problem p = make_problem({4, 4, 64}, {10, 20}, 1);
  const int64_t stride = p.qkv.cols + 8, out_stride = p.q_cols() + 8;
  EXPECT_THROW(CudnnAttention("odd", {p.shape, stride + 4, out_stride, 100}, arena), Error);
  EXPECT_THROW(CudnnAttention("long", {p.shape, stride, out_stride, int64_t{1} << 23}, arena), Error);
  const CudnnAttention cudnn("cudnn", {p.shape, stride, out_stride, 30}, arena);
  const DeviceArray<Bf16> qkv(queue, p.qkv);
  const DeviceArray<int> cu(queue, row_of(p.cu));
  const DeviceArray<Bf16> out(queue, p.qkv.rows, p.q_cols());
  const CausalAttentionFwd<Bf16> good = p.arguments<Bf16>(qkv.view(), cu.data(), out.view());
  const auto refused = [&](const CausalAttentionFwd<Bf16>& a) {
    EXPECT_THROW(cudnn.forward(a, queue), Error);
    EXPECT_EQ(out.elements().front(), canary<Bf16>());
  };
  CausalAttentionFwd<Bf16> a = good;
  a.q.data += 1;
  refused(a);
  a = good;
  a.k.stride += 8;
  refused(a);
  a = good;
  a.v.rows -= 1;
  refused(a);
  a = good;
  a.shape.kv_heads = 2;
  refused(a);
  cudnn.forward(good, queue);
  EXPECT_NE(element_value(out.elements().front()), 0);
}

// What `plan` does on any machine: the memory is counted, nothing is compiled, nothing can be run.
TEST(CudnnAttention, MeasuresWithoutCompiling) {
  if (cudnn_version().empty()) GTEST_SKIP() << "this build has no cuDNN";
  Arena arena(Device::cuda, Arena::Mode::measure);
  const CudnnAttention cudnn("target.cudnn", {shape_of({32, 8, 128}), 6144, 4096, 4096}, arena);
  EXPECT_EQ(arena.entries().size(), 3u);
  EXPECT_EQ(cudnn.build_seconds(), 0);
  EXPECT_THROW(cudnn.forward({}, Queue{Device::cuda}), Error);
}

}  // namespace
}  // namespace slip::testing
