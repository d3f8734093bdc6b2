// The specification of kernels/attention.hpp: one query row after the other, every score in double.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/check.hpp"
#include "kernels/attention.hpp"
#include "kernels/ref.hpp"

namespace slip {
namespace {

// One key that a query sees, with the places where its gradients go.
template <class T> struct Key {
  const T* k;
  const T* v;
};

template <class T> double dot(const T* a, const T* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += to_double(a[i]) * to_double(b[i]);
  return sum;
}

// softmax of scale * q.k over the keys; returns the log-sum-exp.
template <class T>
double softmax(const AttentionShape& s, const T* q, const std::vector<Key<T>>& keys, std::vector<double>& p) {
  p.clear();
  double largest = -INFINITY, sum = 0;
  for (const Key<T>& key : keys) {
    p.push_back(static_cast<double>(s.scale) * dot(q, key.k, s.head_dim));
    largest = std::max(largest, p.back());
  }
  for (double& x : p) sum += x = std::exp(x - largest);
  for (double& x : p) x /= sum;
  return largest + std::log(sum);
}

template <class T>
void attend(const AttentionShape& s, const std::vector<Key<T>>& keys, const std::vector<double>& p, T* out) {
  for (int d = 0; d < s.head_dim; ++d) {
    double sum = 0;
    for (size_t i = 0; i < keys.size(); ++i) sum += p[i] * to_double(keys[i].v[d]);
    out[d] = from_double<T>(sum);
  }
}

// Context tokens, then slots of the block, that slot `slot` of block `b` sees.
struct Seen {
  std::vector<int64_t> context, slots;
};
Seen seen_keys(const AttentionShape& s, int lo, int anchor, int slot, int64_t context) {
  Seen seen;
  for (int64_t k = 0; k < context; ++k) {
    if (sees_context(s, lo, anchor, slot, k)) seen.context.push_back(k);
  }
  for (int k = 0; k < s.block; ++k) {
    if (sees_slot(s, slot, k)) seen.slots.push_back(k);
  }
  return seen;
}

// The keys of head `kv` for a query of block b, context first; `a` is either direction's arguments.
template <class T, class A> std::vector<Key<T>> gather(const A& a, const Seen& seen, int64_t b, int kv) {
  const int64_t column = int64_t{kv} * a.shape.head_dim;
  std::vector<Key<T>> keys;
  for (const int64_t t : seen.context)
    keys.push_back({a.k_context.row(t) + column, a.v_context.row(t) + column});
  for (const int64_t j : seen.slots) {
    const int64_t row = b * a.shape.block + j;
    keys.push_back({a.k_block.row(row) + column, a.v_block.row(row) + column});
  }
  return keys;
}

}  // namespace

template <class T> void block_attention_fwd_ref(const BlockAttentionFwd<T>& a) {
  const AttentionShape& s = a.shape;
  std::vector<double> p;
  for (int64_t row = 0; row < a.q.rows; ++row) {
    const int64_t b = row / s.block;
    const Seen seen = seen_keys(s, a.lo[b], a.anchor[b], static_cast<int>(row % s.block), a.k_context.rows);
    for (int n = 0; n < s.heads; ++n) {
      const std::vector<Key<T>> keys = gather<T>(a, seen, b, n / (s.heads / s.kv_heads));
      const int64_t column = int64_t{n} * s.head_dim;
      const double lse = softmax(s, a.q.row(row) + column, keys, p);
      attend(s, keys, p, a.out.row(row) + column);
      a.lse[row * s.heads + n] = static_cast<Acc<T>>(lse);
    }
  }
}

// With P = softmax(S), S = scale q k^T:  dV = P^T dO,  dP = dO V^T,  dS = P (dP - sum_k P dP),
// dQ = scale dS K,  dK = scale dS^T Q. P is computed anew: the forward's out and lse are not read.
template <class T> void block_attention_bwd_ref(const BlockAttentionBwd<T>& a) {
  const AttentionShape& s = a.shape;
  const int64_t width = int64_t{s.kv_heads} * s.head_dim;
  const auto zeros = [&](int64_t rows) { return std::vector<double>(static_cast<size_t>(rows * width)); };
  std::vector<double> dk_context = zeros(a.k_context.rows), dv_context = dk_context;
  std::vector<double> dk_block = zeros(a.q.rows), dv_block = dk_block;
  std::vector<double> p, dp;
  for (int64_t row = 0; row < a.q.rows; ++row) {
    const int64_t b = row / s.block;
    const Seen seen = seen_keys(s, a.lo[b], a.anchor[b], static_cast<int>(row % s.block), a.k_context.rows);
    for (int n = 0; n < s.heads; ++n) {
      const int kv = n / (s.heads / s.kv_heads);
      const std::vector<Key<T>> keys = gather<T>(a, seen, b, kv);
      const T* q = a.q.row(row) + int64_t{n} * s.head_dim;
      const T* dout = a.dout.row(row) + int64_t{n} * s.head_dim;
      softmax(s, q, keys, p);
      double mean = 0;
      dp.assign(keys.size(), 0);
      for (size_t i = 0; i < keys.size(); ++i) mean += p[i] * (dp[i] = dot(dout, keys[i].v, s.head_dim));
      std::vector<double> dq(static_cast<size_t>(s.head_dim));
      for (size_t i = 0; i < keys.size(); ++i) {
        const bool context = i < seen.context.size();
        const int64_t at = context ? seen.context[i] : b * s.block + seen.slots[i - seen.context.size()];
        double* dk = (context ? dk_context : dk_block).data() + at * width + int64_t{kv} * s.head_dim;
        double* dv = (context ? dv_context : dv_block).data() + at * width + int64_t{kv} * s.head_dim;
        const double ds = static_cast<double>(s.scale) * p[i] * (dp[i] - mean);
        for (int d = 0; d < s.head_dim; ++d) {
          dq[static_cast<size_t>(d)] += ds * to_double(keys[i].k[d]);
          dk[d] += ds * to_double(q[d]);
          dv[d] += p[i] * to_double(dout[d]);
        }
      }
      for (int d = 0; d < s.head_dim; ++d) {
        a.dq.at(row, int64_t{n} * s.head_dim + d) = from_double<T>(dq[static_cast<size_t>(d)]);
      }
    }
  }
  for (int64_t t = 0; t < a.k_context.rows; ++t) {
    for (int64_t c = 0; c < width; ++c) {
      a.dk_context.at(t, c) += static_cast<Acc<T>>(dk_context[static_cast<size_t>(t * width + c)]);
      a.dv_context.at(t, c) += static_cast<Acc<T>>(dv_context[static_cast<size_t>(t * width + c)]);
    }
  }
  for (int64_t r = 0; r < a.q.rows; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      a.dk_block.at(r, c) = from_double<T>(dk_block[static_cast<size_t>(r * width + c)]);
      a.dv_block.at(r, c) = from_double<T>(dv_block[static_cast<size_t>(r * width + c)]);
    }
  }
}

template <class T> void causal_attention_fwd_ref(const CausalAttentionFwd<T>& a) {
  const AttentionShape& s = a.shape;
  std::vector<double> p;
  for (int document = 0; document < a.documents; ++document) {
    for (int64_t t = a.cu_host[document]; t < a.cu_host[document + 1]; ++t) {
      for (int n = 0; n < s.heads; ++n) {
        const int64_t kv_column = int64_t{n / (s.heads / s.kv_heads)} * s.head_dim;
        std::vector<Key<T>> keys;
        for (int64_t k = a.cu_host[document]; k <= t; ++k)
          keys.push_back({a.k.row(k) + kv_column, a.v.row(k) + kv_column});
        softmax(s, a.q.row(t) + int64_t{n} * s.head_dim, keys, p);
        attend(s, keys, p, a.out.row(t) + int64_t{n} * s.head_dim);
      }
    }
  }
}

template void block_attention_fwd_ref(const BlockAttentionFwd<float>&);
template void block_attention_fwd_ref(const BlockAttentionFwd<double>&);
template void block_attention_fwd_ref(const BlockAttentionFwd<Bf16>&);
template void block_attention_bwd_ref(const BlockAttentionBwd<float>&);
template void block_attention_bwd_ref(const BlockAttentionBwd<double>&);
template void block_attention_bwd_ref(const BlockAttentionBwd<Bf16>&);
template void causal_attention_fwd_ref(const CausalAttentionFwd<float>&);
template void causal_attention_fwd_ref(const CausalAttentionFwd<double>&);
template void causal_attention_fwd_ref(const CausalAttentionFwd<Bf16>&);

}  // namespace slip
