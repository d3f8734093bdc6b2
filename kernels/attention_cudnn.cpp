#include "kernels/attention_cudnn.hpp"

#if SLIP_HAVE_CUDNN
#include <algorithm>
#include <chrono>
#include <limits>

#include "device/buffer.hpp"
#include "kernels/cudnn_graph.hpp"
#endif

namespace slip {
#if SLIP_HAVE_CUDNN
namespace {

// Documents of one call. Fewer cost nothing; a row with more is computed in several calls, so one plan serves
// all.
constexpr int64_t kDocuments = 64;
constexpr int64_t kTile = 128;  // the kernel is the same for all lengths that are multiples of this

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

enum Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kScale,
  kMinusInfinity,
  kQueryLength,
  kKeyLength,
  kQBegin,
  kKBegin,
  kVBegin,
  kOutBegin
};

// Softmax(mask(scale q k^T)) v, as the pattern that cuDNN knows as attention: an operation more or less, or
// another order, and it has no engine.
CudnnGraph attention_graph(const CudnnAttention::Limits& l) {
  const auto bf16 = CUDNN_DATA_BFLOAT16, fp32 = CUDNN_DATA_FLOAT, int32 = CUDNN_DATA_INT32,
             boolean = CUDNN_DATA_BOOLEAN;
  const int64_t b = kDocuments, s = round_up(l.max_tokens, kTile), d = l.shape.head_dim;
  const int64_t heads = l.shape.heads, kv_heads = l.shape.kv_heads, row = l.qkv_stride,
                out_row = l.out_stride;
  CudnnGraph g;
  const auto begins = [&](int64_t uid) { return g.tensor(uid, int32, {b + 1, 1, 1, 1}, {1, 1, 1, 1}); };
  const CudnnNode q_begin = begins(kQBegin), k_begin = begins(kKBegin), v_begin = begins(kVBegin),
                  out_begin = begins(kOutBegin);
  const CudnnNode q = g.tensor(kQ, bf16, {b, heads, s, d}, {s * row, d, row, 1}, &q_begin);
  const CudnnNode k = g.tensor(kK, bf16, {b, kv_heads, d, s}, {s * row, d, 1, row}, &k_begin);  // transposed
  const CudnnNode v = g.tensor(kV, bf16, {b, kv_heads, s, d}, {s * row, d, row, 1}, &v_begin);
  const CudnnNode out = g.tensor(kOut, bf16, {b, heads, s, d}, {s * out_row, d, out_row, 1}, &out_begin);
  const CudnnNode scale = g.scalar(kScale), minus_infinity = g.scalar(kMinusInfinity);
  const CudnnNode queries = g.tensor(kQueryLength, int32, {b, 1, 1, 1}, {1, 1, 1, 1});
  const CudnnNode keys = g.tensor(kKeyLength, int32, {b, 1, 1, 1}, {1, 1, 1, 1});

  const CudnnGraph::Dims tile = {b, heads, s, s}, column = {b, heads, s, 1};
  const auto apply = [&](cudnnPointwiseMode_t mode, cudnnDataType_t compute, const CudnnNode& x,
                         const CudnnGraph::Operands& more, cudnnDataType_t type,
                         const CudnnGraph::Dims& dims) {
    CudnnNode y = g.inner(type, dims);
    g.pointwise(mode, compute, x, more, y);
    return y;
  };
  const auto reduce = [&](cudnnReduceTensorOp_t op, const CudnnNode& x) {
    CudnnNode y = g.inner(fp32, column);
    g.reduce(op, x, y);
    return y;
  };
  const CudnnNode product = g.inner(fp32, tile);
  g.matmul(q, k, product, &queries, &keys, nullptr);
  const CudnnNode scaled = apply(CUDNN_POINTWISE_MUL, fp32, product, {.b = &scale}, fp32, tile);
  // Inside the document.
  const CudnnNode row_inside = apply(CUDNN_POINTWISE_GEN_INDEX, int32, scaled, {.axis = 2}, int32, tile);
  const CudnnNode col_inside = apply(CUDNN_POINTWISE_GEN_INDEX, int32, scaled, {.axis = 3}, int32, tile);
  const CudnnNode is_query =
      apply(CUDNN_POINTWISE_CMP_LT, boolean, row_inside, {.b = &queries}, boolean, tile);
  const CudnnNode is_key = apply(CUDNN_POINTWISE_CMP_LT, boolean, col_inside, {.b = &keys}, boolean, tile);
  const CudnnNode inside =
      apply(CUDNN_POINTWISE_LOGICAL_AND, boolean, is_query, {.b = &is_key}, boolean, tile);
  const CudnnNode padded =
      apply(CUDNN_POINTWISE_BINARY_SELECT, fp32, scaled, {.b = &minus_infinity, .pick = &inside}, fp32, tile);
  // Not after the query. cuDNN recognises these three and skips the tiles above the diagonal.
  const CudnnNode query = apply(CUDNN_POINTWISE_GEN_INDEX, fp32, padded, {.axis = 2}, int32, tile);
  const CudnnNode key = apply(CUDNN_POINTWISE_GEN_INDEX, fp32, padded, {.axis = 3}, int32, tile);
  const CudnnNode past = apply(CUDNN_POINTWISE_CMP_GE, boolean, query, {.b = &key}, boolean, tile);
  const CudnnNode score =
      apply(CUDNN_POINTWISE_BINARY_SELECT, fp32, padded, {.b = &minus_infinity, .pick = &past}, fp32, tile);
  const CudnnNode top = reduce(CUDNN_REDUCE_TENSOR_MAX, score);
  const CudnnNode lower = apply(CUDNN_POINTWISE_SUB, fp32, score, {.b = &top}, fp32, tile);
  const CudnnNode power = apply(CUDNN_POINTWISE_EXP, fp32, lower, {}, fp32, tile);
  const CudnnNode sum = reduce(CUDNN_REDUCE_TENSOR_ADD, power);
  // The log-sum-exp, which nobody reads: without it there is no engine.
  const CudnnNode log_sum = apply(CUDNN_POINTWISE_LOG, fp32, sum, {}, fp32, column);
  apply(CUDNN_POINTWISE_ADD, fp32, top, {.b = &log_sum}, fp32, column);
  const CudnnNode weight = apply(CUDNN_POINTWISE_DIV, fp32, power, {.b = &sum}, bf16, tile);
  g.matmul(weight, v, out, &queries, nullptr, &keys);
  return g;
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

struct CudnnAttention::State {
  Limits limits;
  int64_t count;  // documents of a row at most, in whole calls
  int *lengths, *qkv_begin, *out_begin;
  CudnnHandle handle;
  CudnnGraph graph;
  CudnnPlan plan;
  Buffer workspace;  // some KiB; its size is known after the plan is, so it is not the arena's
  double build_seconds = 0;
};
void CudnnAttention::Closer::operator()(State* s) const noexcept { delete s; }

std::string cudnn_version() {
  const size_t v = cudnnGetVersion();
  return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}

std::string cudnn_attention_problem(const AttentionShape& s) {
  // 9.10.0 and 9.10.1 compute wrong results; versions before want another value for masked scores.
  if (cudnnGetVersion() < 91002) return "cuDNN " + cudnn_version() + " is older than 9.10.2";
  if (s.head_dim % 8 != 0 || s.head_dim > 256)
    return "a head has " + std::to_string(s.head_dim) + " values: not a multiple of 8 up to 256";
  if (s.kv_heads < 1 || s.heads % s.kv_heads != 0)
    return std::to_string(s.heads) + " heads are no multiple of " + std::to_string(s.kv_heads) + " key heads";
  return {};
}

CudnnAttention::CudnnAttention(const std::string& name, const Limits& l, Arena& arena) {
  if (const std::string problem = cudnn_attention_problem(l.shape); !problem.empty()) {
    fail("cuDNN attention: " + problem);
  }
  require(l.qkv_stride % 8 == 0 && l.out_stride % 8 == 0,
          "cuDNN attention: rows are not multiples of 16 bytes");
  require(l.max_tokens > 0 && round_up(l.max_tokens, kTile) <=
                                  std::numeric_limits<int>::max() / std::max(l.qkv_stride, l.out_stride),
          "cuDNN attention: more values than 32 bits count");
  const int64_t count = round_up(l.max_tokens, kDocuments);
  const char* key = "data.row_tokens";
  int* const lengths = arena.take<int>(name + ".lengths", count, key);
  int* const qkv_begin = arena.take<int>(name + ".qkv_begin", count + 1, key);
  int* const out_begin = arena.take<int>(name + ".out_begin", count + 1, key);
  if (arena.measuring()) return;
  const auto start = std::chrono::steady_clock::now();
  state_.reset(new State{.limits = l,
                         .count = count,
                         .lengths = lengths,
                         .qkv_begin = qkv_begin,
                         .out_begin = out_begin,
                         .handle = make_cudnn_handle(),
                         .graph = attention_graph(l)});
  state_->plan = state_->graph.plan(state_->handle.get());
  state_->workspace = Buffer(Place::device, std::max<int64_t>(256, state_->plan.workspace_bytes));
  state_->build_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double CudnnAttention::build_seconds() const { return state_ ? state_->build_seconds : 0; }
int64_t CudnnAttention::workspace_bytes() const { return state_ ? state_->workspace.bytes() : 0; }

void CudnnAttention::forward(const CausalAttentionFwd<Bf16>& a, const Queue& queue) const {
  require(state_ != nullptr && !queue.on_cpu(),
          "cuDNN attention: was only measured, or the queue is the CPU");
  const State& s = *state_;
  const AttentionShape& shape = s.limits.shape;
  const int64_t tokens = a.out.rows, d = shape.head_dim, q_cols = shape.heads * d,
                kv_cols = shape.kv_heads * d;
  require(a.shape.heads == shape.heads && a.shape.kv_heads == shape.kv_heads &&
              a.shape.head_dim == shape.head_dim,
          "cuDNN attention: another shape than the plan's");
  require(a.q.rows == tokens && a.k.rows == tokens && a.v.rows == tokens && a.q.cols == q_cols &&
              a.out.cols == q_cols && a.k.cols == kv_cols && a.v.cols == kv_cols,
          "cuDNN attention: views do not fit the shape");
  // cuDNN accepts all of the following without a word.
  require(a.q.stride == s.limits.qkv_stride && a.k.stride == s.limits.qkv_stride &&
              a.v.stride == s.limits.qkv_stride && a.out.stride == s.limits.out_stride,
          "cuDNN attention: other strides than the plan's");
  require(aligned(a.q.data) && aligned(a.k.data) && aligned(a.v.data) && aligned(a.out.data),
          "cuDNN attention: a view does not start at a multiple of 16 bytes");
  require(tokens <= s.limits.max_tokens && a.documents <= s.count,
          "cuDNN attention: a longer row than the plan's");
  if (tokens == 0) return;
  const int64_t count = round_up(a.documents, kDocuments);
  cudnn_packing_cuda({.cu = a.cu,
                      .documents = a.documents,
                      .count = static_cast<int>(count),
                      .qkv_stride = s.limits.qkv_stride,
                      .out_stride = s.limits.out_stride,
                      .lengths = s.lengths,
                      .qkv_begin = s.qkv_begin,
                      .out_begin = s.out_begin},
                     queue.stream);
  check(cudnnSetStream(s.handle.get(), queue.stream));
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  for (int64_t first = 0; first < count; first += kDocuments) {
    run_cudnn_plan(s.handle.get(), s.plan,
                   {{kQ, a.q.data},
                    {kK, a.k.data},
                    {kV, a.v.data},
                    {kOut, a.out.data},
                    {kScale, &a.shape.scale},
                    {kMinusInfinity, &minus_infinity},
                    {kQueryLength, s.lengths + first},
                    {kKeyLength, s.lengths + first},
                    {kQBegin, s.qkv_begin + first},
                    {kKBegin, s.qkv_begin + first},
                    {kVBegin, s.qkv_begin + first},
                    {kOutBegin, s.out_begin + first}},
                   s.workspace.data());
  }
}

#else

struct CudnnAttention::State {};
void CudnnAttention::Closer::operator()(State* s) const noexcept { delete s; }
std::string cudnn_version() { return {}; }
std::string cudnn_attention_problem(const AttentionShape&) { return "this build has no cuDNN"; }
CudnnAttention::CudnnAttention(const std::string&, const Limits& l, Arena&) {
  fail("cuDNN attention: " + cudnn_attention_problem(l.shape));
}
void CudnnAttention::forward(const CausalAttentionFwd<Bf16>&, const Queue&) const {
  fail("this build has no cuDNN");
}
double CudnnAttention::build_seconds() const { return 0; }
int64_t CudnnAttention::workspace_bytes() const { return 0; }

#endif
}  // namespace slip
