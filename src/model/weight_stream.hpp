// Bytes of a checkpoint to where a queue's memory is, as fast as disk and bus allow: several threads read
// neighbouring pieces of the files, each into two pinned buffers in turn, and copy them while the next is
// read. On the CPU they read into place.
#pragma once
#include <functional>
#include <vector>

#include "device/queue.hpp"
#include "io/safetensors.hpp"

namespace slip {

// `bytes` of a tensor from byte `offset` of it on, as stored.
struct WeightPiece {
  const TensorInfo* tensor;
  int64_t offset, bytes;
  void* to;
};

// Ranks that need the same weights: one reads, and passes on what it has read.
struct WeightSpread {
  bool reads = true;  // on one rank
  // Called on all ranks for the same bytes in the same order. `data` lies where the queue's memory is; where
  // `reads`, it is filled. May return before the bytes have left or come; throws when a rank is gone.
  std::function<void(void* data, int64_t bytes)> pass;
  std::function<void()> finish;  // all have
};

struct LoadHooks {
  // Called some ten times a second while bytes come, and not while none do; may throw, which ends the load.
  std::function<void()> progress;
  const WeightSpread* spread = nullptr;  // null: this rank reads for itself
};

struct StreamLimits {
  int64_t piece_bytes = 16 << 20;  // larger pieces are cut; a buffer has as many
  int readers = 8;                 // at most, two buffers each on a GPU
};

// Reads them in the order of the files and returns when all are in place. Says every 5 s how far it is, and
// at the end what it took, where that was a second or more. Throws what a reader met first. With a spread one
// rank reads, and what it has read goes on while the next is read; the pieces must be the same on all ranks.
void stream_weights(const WeightFolder&, std::vector<WeightPiece>, const Queue&, const LoadHooks& = {},
                    const StreamLimits& = {});

}  // namespace slip
