// What the files of the drafter share: sizes, and which columns are whose in matrices that hold all layers.
#pragma once
#include "kernels/attention.hpp"
#include "model/drafter.hpp"

namespace slip {

struct DrafterWidths {
  int64_t h, q, kv;
  int heads, kv_heads, d;
};
inline DrafterWidths widths(const DrafterModel& m) {
  return {m.hidden,
          m.heads * m.head_dim,
          m.kv_heads * m.head_dim,
          static_cast<int>(m.heads),
          static_cast<int>(m.kv_heads),
          static_cast<int>(m.head_dim)};
}

inline AttentionShape layer_shape(const DrafterModel& m, size_t l) {
  const DrafterWidths n = widths(m);
  return {.heads = n.heads,
          .kv_heads = n.kv_heads,
          .head_dim = n.d,
          .scale = attention_scale(n.d),
          .block = static_cast<int>(m.block),
          .window = m.sliding[l] ? static_cast<int>(m.window) : 0,
          .causal = m.causal[l]};
}

// Columns of layer l in the matrices that hold all layers side by side.
template <class V> V layer_keys(const V& kv, const DrafterWidths& n, size_t l) {
  return kv.cols_from(static_cast<int64_t>(l) * 2 * n.kv, n.kv);
}
template <class V> V layer_values(const V& kv, const DrafterWidths& n, size_t l) {
  return kv.cols_from(static_cast<int64_t>(l) * 2 * n.kv + n.kv, n.kv);
}

}  // namespace slip
