// What the tests of block attention share: a problem on the host, the reference's answer in double, and the
// same problem on a queue.
#pragma once
#include <ostream>
#include <vector>

#include "kernels/attention.hpp"
#include "support/kernel_test.hpp"

namespace slip::testing {

struct BlockProblem {
  AttentionShape shape;
  std::vector<int> anchor, lo;
  Matrix q, k_context, v_context, k_block, v_block, dout;
};
inline void describe(const AttentionShape& s, std::ostream* os) {
  *os << s.heads << "/" << s.kv_heads << " heads of " << s.head_dim << ", block " << s.block << ", window "
      << s.window << (s.causal ? ", causal" : "");
}

// Blocks at `anchor`; `lo` holds the first token of each block's document. Values as T holds them.
template <class T>
BlockProblem make_problem(AttentionShape s, int64_t context, std::vector<int> anchor, std::vector<int> lo,
                          uint64_t seed = 1) {
  s.scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
  const auto rows = static_cast<int64_t>(anchor.size()) * s.block;
  const auto make = [&](uint64_t n, int64_t r, int heads) {
    return random_matrix<T>(10 * seed + n, r, int64_t{heads} * s.head_dim);
  };
  return {s,
          std::move(anchor),
          std::move(lo),
          make(1, rows, s.heads),
          make(2, context, s.kv_heads),
          make(3, context, s.kv_heads),
          make(4, rows, s.kv_heads),
          make(5, rows, s.kv_heads),
          make(6, rows, s.heads)};
}

struct BlockAnswer {
  Matrix out, lse, dq, dk_block, dv_block, dk_context, dv_context;
};
inline Matrix start_of(const Matrix& context, uint64_t seed) {  // what dk_context and dv_context are added to
  return random_matrix<float>(seed, context.rows, context.cols);
}

inline BlockAnswer reference(const BlockProblem& p) {
  const Matrix& kb = p.k_block;
  BlockAnswer r{Matrix(p.q.rows, p.q.cols), Matrix(1, p.q.rows * p.shape.heads),
                Matrix(p.q.rows, p.q.cols), Matrix(kb.rows, kb.cols),
                Matrix(kb.rows, kb.cols),   start_of(p.k_context, 7),
                start_of(p.v_context, 8)};
  block_attention_fwd_ref<double>({p.shape, p.q.view(), p.k_context.view(), p.v_context.view(), kb.view(),
                                   p.v_block.view(), p.anchor.data(), p.lo.data(), r.out.view(),
                                   r.lse.values.data()});
  const Matrix& out = r.out;
  block_attention_bwd_ref<double>({p.shape, p.q.view(), p.k_context.view(), p.v_context.view(), kb.view(),
                                   p.v_block.view(), p.anchor.data(), p.lo.data(), out.view(), p.dout.view(),
                                   r.lse.values.data(), r.dq.view(), r.dk_block.view(), r.dv_block.view(),
                                   r.dk_context.view(), r.dv_context.view(), nullptr});
  return r;
}

// The problem and its answers where the queue computes.
template <class T> struct BlockRun {
  DeviceArray<T> q, k_context, v_context, k_block, v_block, dout;
  DeviceArray<int> anchor, lo;
  DeviceArray<T> out, dq, dk_block, dv_block;
  DeviceArray<Acc<T>> lse, dk_context, dv_context, scratch;

  BlockRun(const BlockProblem& p, const Queue& queue)
      : q(queue, p.q),
        k_context(queue, p.k_context),
        v_context(queue, p.v_context),
        k_block(queue, p.k_block),
        v_block(queue, p.v_block),
        dout(queue, p.dout),
        anchor(queue, row_of(p.anchor)),
        lo(queue, row_of(p.lo)),
        out(queue, p.q.rows, p.q.cols),
        dq(queue, p.q.rows, p.q.cols),
        dk_block(queue, p.k_block.rows, p.k_block.cols),
        dv_block(queue, p.k_block.rows, p.k_block.cols),
        lse(queue, 1, p.q.rows * p.shape.heads),
        dk_context(queue, start_of(p.k_context, 7)),
        dv_context(queue, start_of(p.v_context, 8)),
        scratch(queue, 1,
                block_attention_bwd_scratch(p.shape, static_cast<int64_t>(p.anchor.size()), p.k_context.rows,
                                            queue.device)) {}

  void forward(const AttentionShape& s, const Queue& queue) {
    block_attention_fwd<T>({s, q.view(), k_context.view(), v_context.view(), k_block.view(), v_block.view(),
                            anchor.data(), lo.data(), out.view(), lse.data()},
                           queue);
  }
  void backward(const AttentionShape& s, const Queue& queue) {
    block_attention_bwd<T>(
        {s, q.view(), k_context.view(), v_context.view(), k_block.view(), v_block.view(), anchor.data(),
         lo.data(), out.view(), dout.view(), lse.data(), dq.view(), dk_block.view(), dv_block.view(),
         dk_context.view(), dv_context.view(), scratch.data()},
        queue);
  }
};

}  // namespace slip::testing
