// Attention: the step's own rows, and rows that show what length, window and packing cost.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "apps/bench_cases.hpp"
#include "kernels/attention_cudnn.hpp"

namespace slip {
namespace {

struct RowCase {
  std::string name;
  AttentionShape shape;
  RowBlocks blocks;
  int64_t first, count;  // the blocks that are trained together
  double per_step;
  std::string against = {};  // name of the row whose time per live pair this one's is compared with
};

// What both directions read.
template <class T> struct Operands {
  View2<T> q, k_context, v_context, k_block, v_block, out;
  int *anchor, *lo;
  Acc<T>* lse;
};

template <class T> Operands<T> operands(const RowCase& c, Arena& a, const Queue& q) {
  const int64_t rows = c.count * c.shape.block, context = c.blocks.context();
  const int64_t d = c.shape.head_dim, q_cols = c.shape.heads * d, kv_cols = c.shape.kv_heads * d;
  const auto part = [&](const std::vector<int>& v) {
    return std::vector<int>(v.begin() + c.first, v.begin() + c.first + c.count);
  };
  const View2<T> kv_context = filled<T>(a, "kv_context", context, 2 * kv_cols, q);
  const View2<T> kv_block = filled<T>(a, "kv_block", rows, 2 * kv_cols, q);
  return {filled<T>(a, "q", rows, q_cols, q),
          kv_context.cols_from(0, kv_cols),
          kv_context.cols_from(kv_cols, kv_cols),
          kv_block.cols_from(0, kv_cols),
          kv_block.cols_from(kv_cols, kv_cols),
          a.take2<T>("out", rows, q_cols),
          uploaded(a, "anchor", part(c.blocks.anchor), q),
          uploaded(a, "lo", part(c.blocks.lo), q),
          a.take<Acc<T>>("lse", rows * c.shape.heads)};
}

template <class T> BlockAttentionFwd<T> forward_of(const RowCase& c, const Operands<T>& o) {
  return {c.shape, o.q, o.k_context, o.v_context, o.k_block, o.v_block, o.anchor, o.lo, o.out, o.lse};
}

template <class T> void add_row(BenchCases& out, const RowCase& c, const Queue& q) {
  const int64_t rows = c.count * c.shape.block, context = c.blocks.context(), d = c.shape.head_dim;
  const double pairs = live_pairs(c.shape, c.blocks, c.first, c.count);
  const double query = static_cast<double>(rows * c.shape.heads * d),
               key = static_cast<double>((rows + context) * c.shape.kv_heads * d);
  const Dims dims{
      {"blocks", c.count},        {"block", c.shape.block},       {"context", context},
      {"heads", c.shape.heads},   {"kv_heads", c.shape.kv_heads}, {"d", d},
      {"window", c.shape.window}, {"causal", c.shape.causal},     {"pairs", static_cast<int64_t>(pairs)}};
  const auto against = [&](const char* pass) { return c.against.empty() ? c.against : c.against + pass; };
  out.push_back({"block_attention", c.name + " forward", dims, attention_flops(c.shape, pairs, false),
                 (2 * query + 2 * key) * sizeof(T), c.per_step,
                 [=](Arena& a) -> Work {
                   const BlockAttentionFwd<T> x = forward_of(c, operands<T>(c, a, q));
                   return [=] { block_attention_fwd(x, q); };
                 },
                 against(" forward")});
  out.push_back({"block_attention", c.name + " backward", dims, attention_flops(c.shape, pairs, true),
                 (4 * query + 4 * key) * sizeof(T), c.per_step,
                 [=](Arena& a) -> Work {
                   const Operands<T> o = operands<T>(c, a, q);
                   block_attention_fwd(forward_of(c, o), q);
                   const int64_t kv_cols = c.shape.kv_heads * d;
                   const View2<T> dkv = a.take2<T>("dkv", rows, 2 * kv_cols);
                   const View2<Acc<T>> dcontext = a.take2<Acc<T>>("dcontext", context, 2 * kv_cols);
                   const BlockAttentionBwd<T> x{
                       .shape = c.shape,
                       .q = o.q,
                       .k_context = o.k_context,
                       .v_context = o.v_context,
                       .k_block = o.k_block,
                       .v_block = o.v_block,
                       .anchor = o.anchor,
                       .lo = o.lo,
                       .out = o.out,
                       .dout = filled<T>(a, "dout", rows, o.out.cols, q),
                       .lse = o.lse,
                       .dq = a.take2<T>("dq", rows, o.q.cols),
                       .dk_block = dkv.cols_from(0, kv_cols),
                       .dv_block = dkv.cols_from(kv_cols, kv_cols),
                       .dk_context = dcontext.cols_from(0, kv_cols),
                       .dv_context = dcontext.cols_from(kv_cols, kv_cols),
                       .scratch = a.take<Acc<T>>(
                           "scratch", block_attention_bwd_scratch(c.shape, c.count, context, q.device)),
                       .one_document = c.blocks.lo[static_cast<size_t>(c.first)] ==
                                       c.blocks.lo[static_cast<size_t>(c.first + c.count - 1)]};
                   return [=] { block_attention_bwd(x, q); };
                 },
                 against(" backward")});
}

std::string row_name(int64_t tokens, int64_t documents, int64_t window) {
  return fmt::format("S={}{}{}", tokens, window > 0 ? fmt::format(" W={}", window) : "",
                     documents > 1 ? fmt::format(" {} documents", documents) : "");
}

}  // namespace

template <class T> BenchCases block_attention_cases(const StepShape& s, const Queue& q) {
  const DrafterModel& m = s.model;
  BenchCases out;
  // The layers of the step, equal ones together.
  struct Kind {
    int64_t window;
    bool causal;
    int64_t layers;
  };
  std::vector<Kind> kinds;
  for (size_t l = 0; l < m.sliding.size(); ++l) {
    const int64_t window = m.sliding[l] ? m.window : 0;
    const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& k) {
      return k.window == window && k.causal == m.causal[l];
    });
    if (same == kinds.end()) {
      kinds.push_back({window, m.causal[l], 1});
    } else {
      ++same->layers;
    }
  }
  const auto documents = static_cast<int64_t>(s.row.lengths.size());
  for (const Kind& k : kinds) {
    for (const Pass& pass : s.passes) {
      add_row<T>(
          out,
          {"step " + row_name(s.tokens(), documents, k.window), drafter_attention(m, k.window, k.causal),
           s.blocks, pass.first, pass.count, static_cast<double>(k.layers * s.rows)},
          q);
    }
  }
  const int64_t anchors = s.blocks.count(), window = std::min<int64_t>(2048, s.tokens() / 2);
  struct Extra {
    int64_t tokens, documents, window;
  };
  const int64_t S = s.tokens();
  for (const Extra& e : {Extra{S, 1, 0}, Extra{S, 1, window}, Extra{S, 2, 0}, Extra{S, 4, 0}, Extra{S, 8, 0},
                         Extra{S, 16, 0}, Extra{4 * S, 1, 0}, Extra{4 * S, 1, window}}) {
    const RowSizes sizes{e.tokens, e.documents, anchors};
    const RowBlocks blocks = random_blocks(random_row(sizes, m.vocab), m, sizes);
    add_row<T>(out,
               {row_name(e.tokens, e.documents, e.window), drafter_attention(m, e.window, e.window > 0),
                blocks, 0, blocks.count(), 0, e.documents > 1 ? row_name(S, 1, 0) : ""},
               q);
  }
  return out;
}

namespace {

struct CausalCase {
  std::string name;
  AttentionShape shape;
  std::vector<int> cu;  // first token of each document, then all
  bool cudnn;
};

template <class T> BenchCase causal_case(const CausalCase& c, const Queue& q) {
  const int64_t tokens = c.cu.back(), documents = static_cast<int64_t>(c.cu.size()) - 1, d = c.shape.head_dim;
  const int64_t q_cols = c.shape.heads * d, kv_cols = c.shape.kv_heads * d, width = q_cols + 2 * kv_cols;
  double pairs = 0;
  for (size_t i = 1; i < c.cu.size(); ++i) {
    const auto n = static_cast<double>(c.cu[i] - c.cu[i - 1]);
    pairs += n * (n + 1) / 2;
  }
  const Dims dims{{"tokens", tokens},
                  {"documents", documents},
                  {"heads", c.shape.heads},
                  {"kv_heads", c.shape.kv_heads},
                  {"d", d}};
  const double bytes = static_cast<double>(tokens * (width + q_cols)) * sizeof(T);
  return {"causal_attention",
          c.name,
          dims,
          attention_flops(c.shape, pairs, false),
          bytes,
          0,
          [=](Arena& a) -> Work {
            const View2<T> qkv = filled<T>(a, "qkv", tokens, width, q);
            CausalAttentionFwd<T> x{.shape = c.shape,
                                    .q = qkv.cols_from(0, q_cols),
                                    .k = qkv.cols_from(q_cols, kv_cols),
                                    .v = qkv.cols_from(q_cols + kv_cols, kv_cols),
                                    .cu = uploaded(a, "cu", c.cu, q),
                                    .cu_host = nullptr,
                                    .documents = static_cast<int>(documents),
                                    .out = a.take2<T>("out", tokens, q_cols)};
            std::shared_ptr<CudnnAttention> cudnn;
            if (c.cudnn)
              cudnn = std::make_shared<CudnnAttention>(
                  "cudnn", CudnnAttention::Limits{c.shape, width, q_cols, tokens}, a);
            return [x, cudnn, cu = c.cu, q]() mutable {
              x.cu_host = cu.data();
              causal_attention_fwd(x, cudnn.get(), q);
            };
          }};
}

}  // namespace

template <class T> BenchCases causal_attention_cases(const StepShape& s, const Queue& q) {
  BenchCases out;
  std::vector<AttentionShape> shapes = {drafter_attention(s.model, 0, false)};
  if (s.model.head_dim == 128) {  // the full layers of Qwen3.6-27B
    shapes.push_back({.heads = 24, .kv_heads = 4, .head_dim = 256, .scale = attention_scale(256)});
  }
  for (const AttentionShape& shape : shapes) {
    const bool cudnn = sizeof(T) == 2 && cudnn_attention_problem(shape).empty();
    for (const auto& [tokens, documents] :
         {std::pair<int64_t, int64_t>{s.tokens(), 1}, {s.tokens(), 16}, {4 * s.tokens(), 1}}) {
      std::vector<int> cu(1, 0);
      for (const int64_t n : random_row({tokens, documents, 0}, 2).lengths)
        cu.push_back(cu.back() + static_cast<int>(n));
      const std::string name = row_name(tokens, documents, 0) + fmt::format(" d={}", shape.head_dim);
      out.push_back(causal_case<T>({name, shape, cu, false}, q));
      if (cudnn) out.push_back(causal_case<T>({name + " cuDNN", shape, cu, true}, q));
    }
  }
  return out;
}

#define SLIP_INSTANTIATE(T)                                                     \
  template BenchCases block_attention_cases<T>(const StepShape&, const Queue&); \
  template BenchCases causal_attention_cases<T>(const StepShape&, const Queue&);
SLIP_INSTANTIATE(float)
#if SLIP_HAVE_CUDA
SLIP_INSTANTIATE(Bf16)
#endif

}  // namespace slip
