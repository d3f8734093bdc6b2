// What a thread block of the forward kernel has in shared memory, and what it is told.
#pragma once
#include "kernels/attention_hopper.cuh"

namespace slip::hopper {

struct FwdArgs {
  DraftRows rows;
  float* lse;  // (tokens, heads)
  int items, heads, group;
  bool causal;
  float scale;
};

// What a computing warpgroup has to know of its unit; written by the loading warp beside the queries.
struct FwdNote {
  int skip, count, tail;        // tiles of the stream before its own, its own, after
  int key, high;                // where the first of its own begins, and past the last key seen
  int max_low, min_high, none;  // keys between are seen by every row
};
static_assert(sizeof(FwdNote) == 32);

template <int D, int TB> struct FwdTile {
  static constexpr int kGroups = D == 128 && TB == 64 ? 2 : 3;  // computing warpgroups: as many as fit
  static constexpr int kThreads = 128 * (1 + kGroups), kRegisters = kGroups == 3 ? 160 : 232;
  static constexpr int kKeys = D == 64 && TB < 64 ? 96 : D == 128 && TB == 16 ? 80 : 64;
  static constexpr int kStages = D == 128 ? 2 : 3,
                       kBuffers = 2;  // the second: of queries, for each warpgroup
  static constexpr int kHeads = kRows / TB;
  static constexpr int kTile = kKeys * D * 2, kTileChunk = kKeys * 128;
  static constexpr int kQ = kRows * D * 2, kQChunk = kRows * 128;
  static constexpr int kOwnKeys = kGroups * TB, kOwn = kOwnKeys * D * 2, kOwnChunk = kOwnKeys * 128;
  // Shared memory: K tiles, V tiles, queries, own keys and values, barriers, notes to the warpgroups, list of
  // work.
  static constexpr int kQueries = 2 * kStages * kTile, kOwns = kQueries + kBuffers * kGroups * kQ;
  static constexpr int kBars = kOwns + 2 * kOwn, kBarCount = 4 * kStages + 2 * kBuffers * kGroups + 4;
  static constexpr int kNotes = kBars + 256, kList = kNotes + kBuffers * kGroups * int(sizeof(FwdNote));
  static constexpr int kBytes = kList + kListed * 4 + 1024;
  static_assert(kBytes <= kMaxSharedBytes && 8 * kBarCount <= 256 && kQueries >= kSorted * 4);
};

}  // namespace slip::hopper
