// The frozen head, the loss and its gradient, in chunks of whole blocks that never hold rows x vocabulary:
// logits of a chunk -> log-sum-exp, label logit, argmax -> weights -> gradient in place of the logits -> dH.
// dflash.md 3.2, 3.3, 3.5. Rows without a label to learn are compacted away before the first product.
#pragma once
#include <cmath>
#include <cstdint>

#include "device/queue.hpp"
#include "device/view.hpp"
#include "kernels/fp8.hpp"

namespace slip {

enum class LossKind { decay, dpace };
struct LossRule {
  LossKind kind = LossKind::decay;
  float gamma = 7;     // decay: weight exp(-(j-1)/gamma); 0 disables
  float alpha = 0.5f;  // dpace
};

// Weights of one block's slots. valid, nll and weight hold `block` entries; slot 0 never counts.
// decay: w_j = v_j exp(-(j-1)/gamma).  dpace (arXiv 2605.18810): s_j = (1-alpha) exp(-nll_j) + alpha (1 where
// not valid), P_j = prod_{i<=j} s_i, w_j = v_j sum_{r>=j} P_r v_r, a constant for the gradient.
template <class A>
SLIP_HD inline void block_weights(const LossRule& rule, int block, const uint8_t* valid, const A* nll,
                                  A* weight) {
  if (rule.kind == LossKind::decay) {
    for (int j = 0; j < block; ++j) {
      const A w = rule.gamma > 0 ? static_cast<A>(exp(-static_cast<double>(j - 1) / rule.gamma)) : A(1);
      weight[j] = (j >= 1 && valid[j]) ? w : A(0);
    }
    return;
  }
  A product = 1;
  for (int j = 1; j < block; ++j) {  // weight[j] holds P_j v_j for now
    if (valid[j])
      product *= (A(1) - rule.alpha) * static_cast<A>(exp(-static_cast<double>(nll[j]))) + rule.alpha;
    weight[j] = valid[j] ? product : A(0);
  }
  A suffix = 0;
  for (int j = block - 1; j >= 1; --j) {
    suffix += weight[j];
    weight[j] = valid[j] ? suffix : A(0);
  }
  if (block > 0) weight[0] = 0;
}

// The frozen head for products in fp8. Of the gradient a row's codes are 448 (softmax - [label]), which needs
// no search for the largest, and its scale is weight / 448: what is likelier than 2e-6 has a code.
struct Fp8Head {
  Fp8Rows head, turned;         // (V, H), (H, V)
  Fp8Rows hidden, gradient;     // (chunk_rows, H), (chunk_rows, V) scratch
  uint32_t* largest = nullptr;  // (max(V, chunk_rows) + H) scratch
  bool empty() const { return head.empty(); }
};

template <class T> struct HeadLoss {
  View2<const T> hidden;  // (blocks*block, H) after the final norm
  View2<const T> head;    // (V, H)
  int block;
  LossRule rule;
  const int* labels;     // (blocks*block) token ids; read only where valid
  const uint8_t* valid;  // (blocks*block) the v of dflash.md 3.2
  const int* rows;       // (valid rows) their indices, ascending
  const int*
      block_begin_host;  // (blocks+1) HOST memory: block i's valid rows are rows[begin[i] .. begin[i+1])
  View2<T> dhidden;  // (blocks*block, H) gradient of sum(w * nll), zero in the other rows; empty: none wanted
  Acc<T>* nll;       // (blocks*block) zero where not valid
  Acc<T>* weight;    // (blocks*block) zero where not valid
  uint8_t* correct;  // (blocks*block) argmax equals the label (lowest id among equals); zero where not valid
  // Scratch for chunks of at most chunk_rows >= block rows.
  int64_t chunk_rows;
  T* chunk_hidden;   // (chunk_rows, H)
  T* chunk_dhidden;  // (chunk_rows, H)
  T* chunk_logits;   // (chunk_rows, V)
  Fp8Head fp8 = {};  // where it is given, both products take it in place of `head`
};
template <class T> void head_loss_ref(const HeadLoss<T>&);  // row by row: the specification
template <class T> void head_loss_cpu(const HeadLoss<T>&);
template <class T> void head_loss_cuda(const HeadLoss<T>&, const Queue&);
template <class T> void head_loss(const HeadLoss<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { head_loss_cpu(a); }, [&](auto) { head_loss_cuda(a, q); });
}

}  // namespace slip
