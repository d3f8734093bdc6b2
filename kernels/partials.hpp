// How many partial sums the deterministic reductions on a GPU keep: constants, so that the bits do not depend
// on the number of multiprocessors. 528 is four blocks on each of an H200's 132.
#pragma once
#include <cstdint>

namespace slip {

inline constexpr int kGainParts = 528;     // partial rows of a gain's gradient
inline constexpr int kSquareParts = 1056;  // partial sums of squares
inline constexpr int kCacheBlocks = 264;   // blocks among which attention over a cache is shared out, at most
inline constexpr int kFewRowsBlocks = 132;  // blocks of a product of few rows, at most
inline constexpr int kCacheRows = 64;       // rows of queries that such a block has
inline int gain_parts(int64_t rows) { return rows < kGainParts ? int(rows) : kGainParts; }

}  // namespace slip
