// Causal attention of new tokens over a cache, for decoding. The keys and values of the new tokens are the
// cache's last rows: they are there already, or are given and put there. New token t, of n, sees cache rows
// 0 .. (rows - n) + t. With nothing cached before it is causal attention of one document.
#pragma once
#include "kernels/attention.hpp"

namespace slip {

template <class T> struct CacheAttentionFwd {
  AttentionShape shape;       // block, window and causal unused
  View2<const T> q;           // (n, heads*head_dim)
  View2<const T> k, v;        // (cached + n, kv_heads*head_dim), any stride
  View2<T> out;               // (n, heads*head_dim)
  Acc<T>* scratch = nullptr;  // cache_attention_scratch elements: lets a GPU share the cache out; may be null
  // (n, 2*kv_heads*head_dim) keys and values of the new tokens, and the last n rows of the cache, whose keys
  // and values lie side by side; both empty: they are there already.
  View2<const T> kv_new;
  View2<T> kv_end;
};
int64_t cache_attention_scratch(const AttentionShape&, Device);                // 0 on the CPU
template <class T> void cache_attention_fwd_ref(const CacheAttentionFwd<T>&);  // loops: the specification
template <class T> void cache_attention_fwd_cpu(const CacheAttentionFwd<T>&);
template <class T> void cache_attention_fwd_cuda(const CacheAttentionFwd<T>&, CudaStream);
template <class T> void cache_attention_fwd(const CacheAttentionFwd<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { cache_attention_fwd_cpu(a); }, [&](auto s) { cache_attention_fwd_cuda(a, s); });
}

}  // namespace slip
