// Rows of queries in block-diffusion attention: block of slots, query head of the group of one key/value
// head, slot, the slot fastest. They share the block's keys.
#pragma once
#include <cuda_runtime.h>

#include "kernels/attention.hpp"
#include "kernels/device/attention_tile.cuh"

namespace slip {

struct BlockRows {
  const AttentionShape& shape;
  int64_t block;
  int kv;

  __device__ int group() const { return shape.heads / shape.kv_heads; }
  __device__ bool has(int r) const { return r < group() * shape.block; }
  __device__ int64_t token(int r) const { return block * shape.block + r % shape.block; }
  __device__ int head(int r) const { return kv * group() + r / shape.block; }
  // Where row r starts in a matrix of queries, and slot j in one of keys.
  template <class T> __device__ T* at(const View2<T>& m, int r) const {
    return m.row(token(r)) + head(r) * shape.head_dim;
  }
  template <class T> __device__ T* slot_at(const View2<T>& m, int j) const {
    return m.row(block * shape.block + j) + kv * shape.head_dim;
  }
  __device__ int64_t statistic(int r) const {
    return token(r) * shape.heads + head(r);
  }  // of (row, head) arrays
};

// How the rows of a block of slots and a key/value head go to warps of 8 and to blocks of at most `most`
// warps.
struct RowTiles {
  int warps, tiles;
};
inline RowTiles row_tiles(const AttentionShape& s, int most) {
  const int rows = s.heads / s.kv_heads * s.block, needed = (rows + kOwn - 1) / kOwn;
  const int warps = needed < most ? needed : most;
  return {warps, (needed + warps - 1) / warps};
}

inline void require_heads(const AttentionShape& s, int64_t q_cols, int64_t k_cols) {
  require(s.kv_heads >= 1 && s.heads >= s.kv_heads && s.heads % s.kv_heads == 0,
          "attention: heads must be a multiple of kv_heads");
  require(s.head_dim >= 8 && s.head_dim % 8 == 0 && s.head_dim <= 256,
          "attention: head_dim must be a multiple of 8 up to 256");
  require(q_cols == int64_t(s.heads) * s.head_dim && k_cols == int64_t(s.kv_heads) * s.head_dim,
          "attention: columns must be heads times head_dim");
}
inline void require_block_shape(const AttentionShape& s, int64_t q_rows, int64_t q_cols,
                                int64_t k_context_cols, int64_t k_block_cols) {
  require(s.block >= 1 && s.block <= kTile, "block attention: a block has 1 to 32 slots");
  require(q_rows % s.block == 0, "block attention: queries must be whole blocks");
  require_heads(s, q_cols, k_block_cols);
  require(k_context_cols == k_block_cols, "block attention: context and block keys must have the same heads");
}

}  // namespace slip
