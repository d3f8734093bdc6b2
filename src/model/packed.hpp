// Documents packed into one row, where the queue's memory is: what a target forwards and a drafter's context
// is.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "device/arena.hpp"
#include "kernels/gated_delta.hpp"
#include "kernels/rope.hpp"
#include "model/config.hpp"

namespace slip {

struct Packed {
  int64_t tokens = 0;
  int documents = 0;
  const int* ids = nullptr;       // (tokens)
  const int* position = nullptr;  // (tokens) restarting at 0 in every document
  const int* cu = nullptr;        // (documents + 1)
  const int* cu_host = nullptr;   // the same in host memory
  DeltaRow delta;                 // the documents and their chunks, for gated delta nets
};

// Owns the memory of one row of at most max_tokens tokens; `set` replaces what it holds.
class PackedRow {
 public:
  PackedRow(const std::string& name, int64_t max_tokens, Arena& arena);
  // `ids` are all tokens of the row, `lengths` those of its documents in order.
  Packed set(std::span<const int32_t> ids, std::span<const int64_t> lengths, const Queue& queue);

 private:
  int64_t max_tokens_;
  int *ids_, *position_, *cu_;
  DeltaDocument* documents_;
  DeltaChunk* chunks_;
  std::vector<int> host_ids_, host_position_, host_cu_;  // outlive the asynchronous copies
  std::vector<DeltaDocument> host_documents_;
  std::vector<DeltaChunk> host_chunks_;
};

// cos and sin of position * frequency in fp32, computed in double (target-models.md 8.4).
RopeTable make_rope_table(const std::string& name, const RopeConfig& rope, int64_t head_dim,
                          int64_t positions, Arena& arena, const Queue& queue);

}  // namespace slip
