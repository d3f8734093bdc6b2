// Attention, forward and backward, without a mask tensor and without queries x keys memory.
//
// Block-diffusion attention of the drafter (dflash.md 2.1): a query (block i, slot j) at position p =
// anchor_i + j sees context keys lo_ij <= k < anchor_i, where lo_ij = max(lo_i, p - window + 1) (window 0:
// lo_i), and of the draft keys only those of its own block (the slots <= j where the layer is causal). lo_i
// is the first token of the block's document, so packed rows need nothing else. The window counts the query
// itself (distance < window).
//
// Causal attention of the target: token t of a document sees the tokens of that document up to itself.
// Query head n reads key/value head n / (heads / kv_heads). Scores, sums and log-sum-exp are fp32.
#pragma once
#include <cmath>

#include "device/queue.hpp"
#include "device/view.hpp"

namespace slip {

struct AttentionShape {
  int heads, kv_heads, head_dim;
  float scale;          // head_dim^-0.5
  int block = 0;        // slots of a block; unused by causal attention
  int window = 0;       // 0: full
  bool causal = false;  // inside the block
};

inline float attention_scale(int head_dim) { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }

// The rule in one place, tested against tables drawn by hand: may slot j of a block see context token k /
// slot s?
SLIP_HD inline bool sees_context(const AttentionShape& s, int lo, int anchor, int slot, int64_t k) {
  return k >= lo && k < anchor && (s.window == 0 || anchor + slot - k < s.window);
}
SLIP_HD inline bool sees_slot(const AttentionShape& s, int slot, int key_slot) {
  return !s.causal || key_slot <= slot;
}
// First context key that slot `slot` sees; the last is anchor - 1.
SLIP_HD inline int first_context(const AttentionShape& s, int lo, int anchor, int slot) {
  const int by_window = s.window == 0 ? lo : anchor + slot - s.window + 1;
  const int first = by_window > lo ? by_window : lo;
  return first < anchor ? first : anchor;
}

template <class T> struct BlockAttentionFwd {
  AttentionShape shape;
  View2<const T> q;                     // (blocks*block, heads*head_dim)
  View2<const T> k_context, v_context;  // (context, kv_heads*head_dim), any stride
  View2<const T> k_block, v_block;      // (blocks*block, kv_heads*head_dim), any stride
  const int* anchor;                    // (blocks), not descending
  const int* lo;                        // (blocks), first context token of the block's document
  View2<T> out;                         // (blocks*block, heads*head_dim)
  Acc<T>* lse;                          // (blocks*block, heads), natural log-sum-exp of the scaled scores
  Acc<T>* scratch = nullptr;  // cache_attention_scratch elements: lets a GPU share out the context of a
                              // single block; may be null
};
template <class T> void block_attention_fwd_ref(const BlockAttentionFwd<T>&);  // loops: the specification
template <class T> void block_attention_fwd_cpu(const BlockAttentionFwd<T>&);  // blocked products
template <class T> void block_attention_fwd_cuda(const BlockAttentionFwd<T>&, CudaStream);
template <class T> void block_attention_fwd(const BlockAttentionFwd<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { block_attention_fwd_cpu(a); }, [&](auto s) { block_attention_fwd_cuda(a, s); });
}

template <class T> struct BlockAttentionBwd {
  AttentionShape shape;
  View2<const T> q, k_context, v_context, k_block, v_block;  // as above
  const int* anchor;
  const int* lo;
  View2<const T> out, dout;              // (blocks*block, heads*head_dim)
  const Acc<T>* lse;                     // (blocks*block, heads)
  View2<T> dq;                           // (blocks*block, heads*head_dim)
  View2<T> dk_block, dv_block;           // (blocks*block, kv_heads*head_dim), any stride
  View2<Acc<T>> dk_context, dv_context;  // (context, kv_heads*head_dim), any stride, added to
  Acc<T>* scratch;                       // block_attention_bwd_scratch(...) elements
  int leave_multiprocessors = 0;         // for what runs on another stream (blas.hpp)
  bool one_document = false;             // all blocks are of one: may choose another order of the sums
};
int64_t block_attention_bwd_scratch(const AttentionShape&, int64_t blocks, int64_t context, Device);
template <class T> void block_attention_bwd_ref(const BlockAttentionBwd<T>&);
template <class T> void block_attention_bwd_cpu(const BlockAttentionBwd<T>&);
template <class T> void block_attention_bwd_cuda(const BlockAttentionBwd<T>&, CudaStream);
template <class T> void block_attention_bwd(const BlockAttentionBwd<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { block_attention_bwd_cpu(a); }, [&](auto s) { block_attention_bwd_cuda(a, s); });
}

template <class T> struct CausalAttentionFwd {
  AttentionShape shape;    // block, window and causal unused
  View2<const T> q, k, v;  // (tokens, heads*head_dim), (tokens, kv_heads*head_dim) twice, any stride
  const int* cu;  // (documents + 1) first token of each document, then `tokens`; where the queue's memory is
  const int* cu_host;  // the same in host memory: the grid depends on it
  int documents;
  View2<T> out;  // (tokens, heads*head_dim)
};
template <class T> void causal_attention_fwd_ref(const CausalAttentionFwd<T>&);
template <class T> void causal_attention_fwd_cpu(const CausalAttentionFwd<T>&);
template <class T> void causal_attention_fwd_cuda(const CausalAttentionFwd<T>&, CudaStream);
template <class T> void causal_attention_fwd(const CausalAttentionFwd<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { causal_attention_fwd_cpu(a); }, [&](auto s) { causal_attention_fwd_cuda(a, s); });
}

}  // namespace slip
