// Attention as products over tiles of queries: the query heads of a key/value head and several neighbouring
// blocks (or tokens) share one product with the keys that any of them sees; what a row does not see is cut
// out of its scores.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention.hpp"
#include "kernels/eigen_maps.hpp"

namespace slip {
namespace {

constexpr int kTileRows =
    64;  // rows of a query tile: amortises the packing of the keys, keeps wasted scores few

template <class T> using Scores = RowMatrix<T>;

// Blocks [first, last) of one document and the context keys [key_begin, key_end) that any of them sees.
struct Tile {
  int64_t first, last;
  int key_begin, key_end;
};

Tile next_tile(const AttentionShape& s, const int* anchor, const int* lo, int64_t blocks, int64_t first) {
  const int64_t most = std::max<int64_t>(1, kTileRows / (s.block * (s.heads / s.kv_heads)));
  Tile t{first, first + 1, first_context(s, lo[first], anchor[first], 0), anchor[first]};
  while (t.last < blocks && t.last - first < most && lo[t.last] == lo[first]) {
    t.key_begin = std::min(t.key_begin, first_context(s, lo[t.last], anchor[t.last], 0));
    t.key_end = std::max(t.key_end, anchor[t.last]);
    ++t.last;
  }
  return t;
}

// Tile row of (block, slot, head of the group): heads fastest, so that a slot's heads lie together as in q.
int64_t tile_row(const AttentionShape& s, int64_t block_in_tile, int slot, int head) {
  return (block_in_tile * s.block + slot) * (s.heads / s.kv_heads) + head;
}

// Copies between the rows of q-like matrices and a tile of one key/value head.
template <class V, class Tile, class F>
void for_tile_rows(const AttentionShape& s, const V& view, int64_t first_row, int64_t rows, int kv,
                   Tile& tile, F&& f) {
  const int group = s.heads / s.kv_heads;
  for (int64_t r = 0; r < rows; ++r) {
    for (int g = 0; g < group; ++g) {
      f(tile.row(r * group + g).array(),
        array(view.row(first_row + r) + (kv * group + g) * s.head_dim, s.head_dim));
    }
  }
}
template <class T>
void gather(const AttentionShape& s, View2<const T> from, int64_t first_row, int64_t rows, int kv, T scale,
            Scores<T>& tile) {
  tile.resize(rows * (s.heads / s.kv_heads), s.head_dim);
  for_tile_rows(s, from, first_row, rows, kv, tile, [&](auto t, auto v) { t = v * scale; });
}
template <class T>
void scatter(const AttentionShape& s, const Scores<T>& tile, int64_t first_row, int64_t rows, int kv,
             View2<T> to) {
  for_tile_rows(s, to, first_row, rows, kv, tile, [&](auto t, auto v) { v = t; });
}

// Calls f(row, context columns [c0, c1), block key rows [b0, b1)) for every row of the tile: what the row
// sees.
template <class F>
void for_rows(const AttentionShape& s, const Tile& t, const int* anchor, const int* lo, F&& f) {
  for (int64_t b = t.first; b < t.last; ++b) {
    for (int slot = 0; slot < s.block; ++slot) {
      const int c0 = first_context(s, lo[b], anchor[b], slot) - t.key_begin;
      const int c1 = anchor[b] - t.key_begin;
      const int64_t b0 = (b - t.first) * s.block;
      const int64_t b1 = b0 + (s.causal ? slot + 1 : s.block);
      for (int g = 0; g < s.heads / s.kv_heads; ++g) {
        f(tile_row(s, b - t.first, slot, g), c0, std::max(c0, c1), b0, b1);
      }
    }
  }
}

// Scores of a tile: context columns, then the draft keys of all the tile's blocks.
template <class T> struct TileScores { Scores<T> context, own; };

template <class T, class Op>
void tile_products(const AttentionShape& s, const Tile& t, const Op& op, int kv, const Scores<T>& q,
                   TileScores<T>& out) {
  const auto kc =
      op.k_context.rows_from(t.key_begin, t.key_end - t.key_begin).cols_from(kv * s.head_dim, s.head_dim);
  const auto kb = op.k_block.rows_from(t.first * s.block, (t.last - t.first) * s.block)
                      .cols_from(kv * s.head_dim, s.head_dim);
  out.context.resize(q.rows(), kc.rows);
  out.own.resize(q.rows(), kb.rows);
  if (kc.rows > 0) out.context.noalias() = q * map(kc).transpose();
  out.own.noalias() = q * map(kb).transpose();
}

// Keeps columns [c0, c1) of a row and clears the rest.
template <class Row> void keep(Row row, int64_t c0, int64_t c1) {
  row.head(c0).setZero();
  row.tail(row.size() - c1).setZero();
}

}  // namespace

template <class T> void block_attention_fwd_cpu(const BlockAttentionFwd<T>& a) {
  const AttentionShape& s = a.shape;
  const int64_t blocks = a.q.rows / s.block;
  const int group = s.heads / s.kv_heads;
  Scores<T> q, out;
  TileScores<T> p;
  for (int64_t first = 0; first < blocks;) {
    const Tile t = next_tile(s, a.anchor, a.lo, blocks, first);
    const int64_t row0 = t.first * s.block, rows = (t.last - t.first) * s.block;
    for (int kv = 0; kv < s.kv_heads; ++kv) {
      gather<T>(s, a.q, row0, rows, kv, static_cast<T>(s.scale), q);
      tile_products(s, t, a, kv, q, p);
      for_rows(s, t, a.anchor, a.lo, [&](int64_t r, int64_t c0, int64_t c1, int64_t b0, int64_t b1) {
        auto context = p.context.row(r).array().segment(c0, c1 - c0);
        auto own = p.own.row(r).array().segment(b0, b1 - b0);
        T top = own.maxCoeff();
        if (c1 > c0) top = std::max(top, context.maxCoeff());
        context = (context - top).exp();
        own = (own - top).exp();
        const T sum = context.sum() + own.sum();
        context /= sum;
        own /= sum;
        keep(p.context.row(r).array(), c0, c1);
        keep(p.own.row(r).array(), b0, b1);
        a.lse[(row0 + r / group) * s.heads + kv * group + r % group] = top + std::log(sum);
      });
      const auto vc =
          a.v_context.rows_from(t.key_begin, t.key_end - t.key_begin).cols_from(kv * s.head_dim, s.head_dim);
      const auto vb = a.v_block.rows_from(row0, rows).cols_from(kv * s.head_dim, s.head_dim);
      out.noalias() = p.own * map(vb);
      if (vc.rows > 0) out.noalias() += p.context * map(vc);
      scatter<T>(s, out, row0, rows, kv, a.out);
    }
    first = t.last;
  }
}

// P from the kept log-sum-exp; with D = rowsum(dO * O): dS = P * (dO V^T - D), dQ = scale dS K, dK = dS^T
// (scale Q), dV = P^T dO.
template <class T> void block_attention_bwd_cpu(const BlockAttentionBwd<T>& a) {
  const AttentionShape& s = a.shape;
  const int64_t blocks = a.q.rows / s.block;
  const int group = s.heads / s.kv_heads;
  Scores<T> q, dout, out, dq;
  TileScores<T> p, ds;
  for (int64_t first = 0; first < blocks;) {
    const Tile t = next_tile(s, a.anchor, a.lo, blocks, first);
    const int64_t row0 = t.first * s.block, rows = (t.last - t.first) * s.block,
                  keys = t.key_end - t.key_begin;
    for (int kv = 0; kv < s.kv_heads; ++kv) {
      const int64_t col = kv * s.head_dim;
      const auto slice = [&](const auto& v, int64_t from, int64_t count) {
        return map(v.rows_from(from, count).cols_from(col, s.head_dim));
      };
      gather<T>(s, a.q, row0, rows, kv, static_cast<T>(s.scale), q);
      gather<T>(s, a.dout, row0, rows, kv, T(1), dout);
      gather<T>(s, a.out, row0, rows, kv, T(1), out);
      tile_products(s, t, a, kv, q, p);
      ds.context.resize(q.rows(), keys);
      if (keys > 0) ds.context.noalias() = dout * slice(a.v_context, t.key_begin, keys).transpose();
      ds.own.noalias() = dout * slice(a.v_block, row0, rows).transpose();
      for_rows(s, t, a.anchor, a.lo, [&](int64_t r, int64_t c0, int64_t c1, int64_t b0, int64_t b1) {
        const T lse = a.lse[(row0 + r / group) * s.heads + kv * group + r % group];
        const T delta = dout.row(r).dot(out.row(r));
        const auto finish = [&](auto prob, auto grad, int64_t from, int64_t to) {
          auto seen = prob.segment(from, to - from);
          seen = (seen - lse).exp();
          grad.segment(from, to - from) = seen * (grad.segment(from, to - from) - delta);
          keep(prob, from, to);
          keep(grad, from, to);
        };
        finish(p.context.row(r).array(), ds.context.row(r).array(), c0, c1);
        finish(p.own.row(r).array(), ds.own.row(r).array(), b0, b1);
      });
      dq.noalias() = ds.own * slice(a.k_block, row0, rows);
      if (keys > 0) {
        dq.noalias() += ds.context * slice(a.k_context, t.key_begin, keys);
        slice(a.dk_context, t.key_begin, keys).noalias() += ds.context.transpose() * q;
        slice(a.dv_context, t.key_begin, keys).noalias() += p.context.transpose() * dout;
      }
      dq *= static_cast<T>(s.scale);
      scatter<T>(s, dq, row0, rows, kv, a.dq);
      slice(a.dk_block, row0, rows).noalias() = ds.own.transpose() * q;
      slice(a.dv_block, row0, rows).noalias() = p.own.transpose() * dout;
    }
    first = t.last;
  }
}

template <class T> void causal_attention_fwd_cpu(const CausalAttentionFwd<T>& a) {
  const AttentionShape& s = a.shape;
  const int group = s.heads / s.kv_heads;
  const int64_t tile = std::max(1, kTileRows / group);
  Scores<T> q, scores, out;
  for (int doc = 0; doc < a.documents; ++doc) {
    const int64_t begin = a.cu[doc], end = a.cu[doc + 1];
    for (int64_t t0 = begin; t0 < end; t0 += tile) {
      const int64_t rows = std::min(tile, end - t0), keys = t0 + rows - begin;
      for (int kv = 0; kv < s.kv_heads; ++kv) {
        const auto slice = [&](const auto& v) {
          return map(v.rows_from(begin, keys).cols_from(kv * s.head_dim, s.head_dim));
        };
        gather<T>(s, a.q, t0, rows, kv, static_cast<T>(s.scale), q);
        scores.noalias() = q * slice(a.k).transpose();
        for (int64_t r = 0; r < scores.rows(); ++r) {
          const int64_t seen = t0 - begin + r / group + 1;
          auto row = scores.row(r).array().head(seen);
          const T top = row.maxCoeff();
          row = (row - top).exp();
          row /= row.sum();
          keep(scores.row(r).array(), 0, seen);
        }
        out.noalias() = scores * slice(a.v);
        scatter<T>(s, out, t0, rows, kv, a.out);
      }
    }
  }
}

template void block_attention_fwd_cpu(const BlockAttentionFwd<float>&);
template void block_attention_fwd_cpu(const BlockAttentionFwd<double>&);
template void block_attention_bwd_cpu(const BlockAttentionBwd<float>&);
template void block_attention_bwd_cpu(const BlockAttentionBwd<double>&);
template void causal_attention_fwd_cpu(const CausalAttentionFwd<float>&);
template void causal_attention_fwd_cpu(const CausalAttentionFwd<double>&);

}  // namespace slip
