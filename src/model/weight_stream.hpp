// Bytes of a checkpoint to where a queue's memory is, as fast as disk and bus allow: several threads read
// neighbouring pieces of the files, each into two pinned buffers in turn, and copy them while the next is
// read. On the CPU they read into place.
#pragma once
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

struct StreamLimits {
  int64_t piece_bytes = 16 << 20;  // larger pieces are cut; a buffer has as many
  int readers = 8;                 // at most, two buffers each on a GPU
};

// Reads them in the order of the files and returns when all are in place. Says every 5 s how far it is, and
// at the end what it took, where that was a second or more. Throws what a reader met first.
void stream_weights(const WeightFolder&, std::vector<WeightPiece>, const Queue&, const StreamLimits& = {});

}  // namespace slip
