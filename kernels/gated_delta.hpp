// The gated delta rule over packed documents (target-models.md 6.6 to 6.8). Per value head h, which uses key
// head h / (value_heads / key_heads), a state S of (key_dim, value_dim) starts with every document, at zero
// or at what is given;
// for each token, with g = -exp(a_log) * softplus(a + dt_bias) and beta = sigmoid(b):
//   S <- exp(g) S;  d = beta (v - S^T k);  S <- S + k d^T;  out = S^T q * key_dim^-0.5
// q and k are l2-normalised already (delta_conv.hpp). Gates, state and sums are fp32.
//
// The chunked form, which every back end but the specification computes, takes 64 tokens at a time; no chunk
// spans two documents. With G the running sum of g in the chunk and D_ij = exp(G_i - G_j) for i >= j, else 0:
//   A = strictly lower part of beta_i (k_i . k_j) D_ij;  M = (I + A)^-1
//   R = M (diag(beta) V - diag(beta e^G) K S);  out = (diag(e^G) Q S + (Q K^T o D) R) * key_dim^-0.5
//   S <- e^Gn S + (diag(e^(Gn - G)) K)^T R
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "device/queue.hpp"
#include "device/view.hpp"

namespace slip {

inline constexpr int kDeltaChunk = 64;  // tokens

struct DeltaChunk {
  int first, tokens;
};
struct DeltaDocument {
  int first, tokens;
  int chunk;   // its first one
  int unused;  // 16 bytes each
};
// The documents of a row, longest first so that the last to finish started first, and their chunks in the
// order of the documents.
struct DeltaRow {
  const DeltaDocument* documents = nullptr;  // where the queue's memory is
  const DeltaChunk* chunks = nullptr;
  const DeltaDocument* documents_host = nullptr;  // the same in host memory: the grid depends on it
  int document_count = 0, chunk_count = 0;
};
// Empty documents are left out.
void cut_chunks(std::span<const int64_t> lengths, std::vector<DeltaDocument>& documents,
                std::vector<DeltaChunk>& chunks);

struct DeltaShape {
  int key_heads, value_heads, key_dim, value_dim;  // value_heads a multiple of key_heads; dims of a head
};

// What the tensor-core kernels take, and what one of them leaves the other for a chunk of a value head.
inline bool delta_chunks_fit(const DeltaShape& s) {
  return s.key_dim == 128 && s.value_dim == 128 && s.value_heads / s.key_heads <= 4;
}
inline constexpr int64_t kDeltaBlockBytes = 41472;
inline int64_t delta_state_size(const DeltaShape& s) {  // elements, of one document
  return int64_t{s.value_heads} * s.key_dim * s.value_dim;
}

template <class T> struct GatedDeltaFwd {
  DeltaShape shape;
  View2<const T> q, k;           // (tokens, key_heads*key_dim), any stride
  View2<const T> v;              // (tokens, value_heads*value_dim)
  View2<const T> a, b;           // (tokens, value_heads)
  const float *a_log, *dt_bias;  // (value_heads)
  DeltaRow row;
  View2<T> out;  // (tokens, value_heads*value_dim)
  void* scratch;
  int64_t scratch_bytes;  // gated_delta_scratch<T>(...) or more
  // S of every document before its first token (null: zero), and where S after its last one goes (null: not
  // wanted; may be the same memory): (documents in the order of `row`, value_heads, key_dim, value_dim).
  const Acc<T>* state = nullptr;
  Acc<T>* state_out = nullptr;
};
// Bytes for rows of at most `tokens`; a row whose chunks do not fit is run in groups of documents.
template <class T> int64_t gated_delta_scratch(const DeltaShape&, int64_t tokens, Device);
template <class T> void gated_delta_fwd_ref(const GatedDeltaFwd<T>&);  // token by token: the specification
template <class T> void gated_delta_fwd_cpu(const GatedDeltaFwd<T>&);  // chunks
template <class T> void gated_delta_fwd_cuda(const GatedDeltaFwd<T>&, CudaStream);
template <class T> void gated_delta_fwd(const GatedDeltaFwd<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { gated_delta_fwd_cpu(a); }, [&](auto s) { gated_delta_fwd_cuda(a, s); });
}

// Few tokens, as decoding has them: all rows are one document, of which `row` and scratch are not read, and
// the recurrence is computed as it stands. What a token gives and leaves does not depend, bit for bit, on how
// many follow it. `out` may be empty: only the state is wanted.
template <class T> void gated_delta_step_cpu(const GatedDeltaFwd<T>&);
template <class T> void gated_delta_step_cuda(const GatedDeltaFwd<T>&, CudaStream);
template <class T> void gated_delta_step(const GatedDeltaFwd<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { gated_delta_step_cpu(a); }, [&](auto s) { gated_delta_step_cuda(a, s); });
}

// What no back end accepts.
template <class T> void require_delta_shapes(const GatedDeltaFwd<T>& a) {
  const DeltaShape& s = a.shape;
  require(s.key_heads > 0 && s.value_heads % s.key_heads == 0,
          "gated_delta_fwd: value heads share key heads");
  require(a.q.cols == int64_t{s.key_heads} * s.key_dim && a.k.cols == a.q.cols &&
              a.v.cols == int64_t{s.value_heads} * s.value_dim && (a.out.empty() || a.out.cols == a.v.cols) &&
              a.a.cols == s.value_heads && a.b.cols == s.value_heads,
          "gated_delta_fwd: columns do not fit the heads");
  require(a.k.rows == a.q.rows && a.v.rows == a.q.rows && a.a.rows == a.q.rows && a.b.rows == a.q.rows &&
              (a.out.empty() || a.out.rows == a.q.rows),
          "gated_delta_fwd: one row a token");
}

}  // namespace slip
