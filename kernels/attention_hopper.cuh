// What the Hopper kernels of block-diffusion attention share: which rows a tile holds, which keys they see,
// and who does what.
//
// A warpgroup's 64 rows are a *unit*: `unit_heads` query heads of one key/value head by `unit_tokens` draft
// tokens, row = head * unit_tokens + token, which is how one TMA box of (columns, tokens, heads) arrives. A
// block never straddles two units. Two neighbouring units, a *pair*, are the work of a thread block: anchors
// ascend, so both read nearly the same keys, once.
#pragma once
#include <climits>

#include "kernels/attention_hopper.hpp"
#include "kernels/device/hopper.cuh"

namespace slip::hopper {

constexpr int kThreads = 384;  // a producing and two computing warpgroups
constexpr int kRows = 64;      // of a unit
constexpr float kLog2e = 1.4426950408889634f;

// --- rows ------------------------------------------------------------------------------------------------
struct UnitShape {
  int heads = 0, tokens = 0;  // 0: no kernel for this shape
  int subs = 0;               // units that share a key/value head and tokens: group / heads
};
inline UnitShape unit_shape(const AttentionShape& s) {
  const bool known = (s.head_dim == 64 || s.head_dim == 128) &&
                     (s.block == 4 || s.block == 8 || s.block == 16 || s.block == 32) && s.kv_heads > 0 &&
                     s.heads % s.kv_heads == 0 && s.heads > 0;
  if (!known) return {};
  const int group = s.heads / s.kv_heads;
  int heads = group % 4 == 0 ? 4 : group % 2 == 0 ? 2 : 1;
  while (kRows / heads < s.block) heads /= 2;
  return {heads, kRows / heads, group / heads};
}

// Where draft tokens see the context. Past the last token: as its block, so that whole tiles stay uniform.
struct DraftRows {
  const int *anchor, *lo;
  int blocks, log2_block, window;  // INT_MAX: no window
  __device__ int tokens() const { return blocks << log2_block; }
};
struct Bounds {
  int low, high;  // context keys low <= k < high
};
__device__ __forceinline__ Bounds context_bounds(const DraftRows& r, int token) {
  const int block = min(token >> r.log2_block, r.blocks - 1), slot = token & ((1 << r.log2_block) - 1);
  const int a = r.anchor[block];
  return {min(max(r.lo[block], a + slot - r.window + 1), a), a};
}

// The keys of a unit: [low, high) is seen by some row, [max_low, min_high) by every row. Anchors and lo
// ascend, so the first and the last row decide.
struct Span {
  int low, high, max_low, min_high;
};
__device__ __forceinline__ Span unit_span(const DraftRows& r, int unit, int unit_tokens) {
  if (unit * unit_tokens >= r.tokens()) return {0, 0, 0, 0};
  const Bounds first = context_bounds(r, unit * unit_tokens);
  const Bounds last = context_bounds(r, unit * unit_tokens + unit_tokens - 1);
  return {first.low, last.high, last.low, first.high};
}

// --- keys: the tiles of BN keys that stream past the two warpgroups --------------------------------------
// Tiles start at the first key that is seen, not at a multiple of BN. Units whose contexts lie apart (other
// documents) get a run of tiles each, and what is between them is not read.
struct PairPlan {
  int total, split;  // tiles; tile t starts at start + t BN, from `split` on at second + (t - split) BN
  int start, second;
  // Of a warpgroup: tiles that it lets pass before its own, its own, their first key.
  int skip[2], count[2], key[2];
};
template <int BN> __device__ __forceinline__ PairPlan plan_pair(const Span& a, const Span& b) {
  const int n0 = (max(a.high - a.low, 0) + BN - 1) / BN, n1 = (max(b.high - b.low, 0) + BN - 1) / BN;
  const int start = min(a.low, b.low), joint = (max(a.high, b.high) - start + BN - 1) / BN;
  PairPlan p;
  if (n0 == 0 || n1 == 0 || n0 + n1 <= joint) {
    p.total = n0 + n1;
    p.split = n0;
    p.start = p.key[0] = a.low;
    p.second = p.key[1] = b.low;
    p.skip[0] = 0, p.skip[1] = n0;
    p.count[0] = n0, p.count[1] = n1;
  } else {
    p.total = p.split = joint;
    p.start = start, p.second = 0;
    p.skip[0] = (a.low - start) / BN, p.skip[1] = (b.low - start) / BN;
    p.count[0] = (a.high - start + BN - 1) / BN - p.skip[0];
    p.count[1] = (b.high - start + BN - 1) / BN - p.skip[1];
    p.key[0] = start + p.skip[0] * BN, p.key[1] = start + p.skip[1] * BN;
  }
  return p;
}
template <int BN> __device__ __forceinline__ int tile_key(const PairPlan& p, int t) {
  return t < p.split ? p.start + t * BN : p.second + (t - p.split) * BN;
}

// A stream of tiles for any number of units, built unit by unit: where a unit's keys lie near those before,
// its tiles join the run, else a new run begins. `before` counts the tiles of the runs that are closed.
template <int BN> struct Runs {
  int start = 0, end = 0, before = 0;
  static __device__ __forceinline__ int tiles(int keys) { return (max(keys, 0) + BN - 1) / BN; }
  __device__ __forceinline__ int open() const { return tiles(end - start); }
  __device__ __forceinline__ int total() const { return before + open(); }
  __device__ __forceinline__ bool add(int low, int high) {  // true: a run begins
    if (high <= low) return false;
    const bool begins = open() == 0 || open() + tiles(high - low) <= tiles(max(end, high) - start);
    if (begins) before += open(), start = low, end = high;
    end = max(end, high);
    return begins;
  }
};
template <int BN>
__device__ __forceinline__ int stream_tiles(const DraftRows& r, int unit, int units, int unit_tokens) {
  Runs<BN> runs;
#pragma unroll 1
  for (int u = 0; u < units; ++u) {
    const Span s = unit_span(r, unit + u, unit_tokens);
    runs.add(s.low, s.high);
  }
  return runs.total();
}

// The same by a whole warp, whose lane u keeps what concerns unit u. The tiles of a run come last keys first.
struct KeyStream {
  Span span;
  int skip, count, key;  // tiles of the stream before the unit's own, its own, where the first of them begins
  int run, run_key;      // tiles of the run that begins with this unit (0: none), and its lowest key
  int total;
};
template <int BN>
__device__ __forceinline__ KeyStream plan_stream(const DraftRows& r, int unit, int units, int unit_tokens) {
  const int lane = threadIdx.x % 32;
  KeyStream x{};
  if (lane < units) x.span = unit_span(r, unit + lane, unit_tokens);
  Runs<BN> runs;
  int head = 0, mine = 0, after = 0;  // first units of the run now, and of this lane's; tiles up to its last
#pragma unroll 1
  for (int u = 0; u < units; ++u) {
    const int low = __shfl_sync(~0u, x.span.low, u), high = __shfl_sync(~0u, x.span.high, u);
    if (runs.add(low, high)) head = u;
    if (lane == head) x.run = runs.open(), x.run_key = runs.start;
    if (lane == u && high > low) {
      mine = head, after = runs.tiles(high - runs.start);
      x.skip = runs.before;
      x.count = after - (low - runs.start) / BN;
      x.key = runs.start + (after - 1) * BN;
    }
  }
  x.skip += __shfl_sync(~0u, x.run, mine) - after;
  if (x.count == 0) x.skip = 0;
  x.total = runs.total();
  return x;
}

// What a computing warpgroup has to know of its unit; written by the loading warp beside the data.
struct Note {
  int token, head;        // first of the unit
  int skip, count, tail;  // tiles of the stream: before its own, its own, after
  int key;                // first key of its own tiles
  int max_low, min_high;  // keys between are seen by every row
};
static_assert(sizeof(Note) == 32);
__device__ __forceinline__ Note uniform(const Note& x) {
  return {uniform(x.token), uniform(x.head), uniform(x.skip),    uniform(x.count),
          uniform(x.tail),  uniform(x.key),  uniform(x.max_low), uniform(x.min_high)};
}

// --- who does what ---------------------------------------------------------------------------------------
// Items are (entry, head) with heads inside. Sorted by cost, longest first, they are dealt in rounds of
// gridDim.x, odd rounds backwards: within noise of giving each to the least loaded block, with no list in
// global memory, and the same at every launch. Every block sorts for itself, in shared memory that its tiles
// take over afterwards; past kSorted entries or kListed rounds the order is simply descending.
constexpr int kListed = 256, kSorted = 4096;

struct Deal {
  const int* list;  // of this block, in shared memory; null: descending order
  int rounds, entries, heads;
  __device__ __forceinline__ int item(int round) const {
    if (list) return list[round];
    const int rank = round * gridDim.x + (round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    return (entries - 1 - rank / heads) * heads + rank % heads;
  }
};

// Called by all threads. `used` entries have a cost above 0; the others come last and are not dealt.
// list: kListed ints, cost: kSorted ints. The caller synchronises the block afterwards.
template <class Cost>
__device__ __forceinline__ Deal deal(int entries, int used, int heads, int* list, int* cost, Cost&& cost_of) {
  const int grid = gridDim.x, me = blockIdx.x;
  const bool sort = entries <= kSorted && (int64_t(entries) * heads + grid - 1) / grid <= kListed;
  const int items = (sort ? used : entries) * heads, full = items / grid, rest = items - full * grid;
  const int rounds = full + ((full & 1 ? grid - 1 - me : me) < rest);
  if (!sort) return {nullptr, rounds, entries, heads};
  const int padded = (entries + 3) / 4 * 4;
  for (int p = threadIdx.x; p < padded; p += blockDim.x) cost[p] = p < entries ? cost_of(p) : -1;
  __syncthreads();
  bool ascending = true;
  for (int p = threadIdx.x; p + 1 < entries; p += blockDim.x) ascending &= cost[p] <= cost[p + 1];
  ascending = __syncthreads_and(ascending);
  for (int p = threadIdx.x; p < entries; p += blockDim.x) {
    int place = entries - 1 - p;
    if (!ascending) {
      const int mine = cost[p];
      place = 0;
      for (int q = 0; q < padded; q += 4) {
        const int4 c = *reinterpret_cast<const int4*>(cost + q);
        place += (c.x > mine || (c.x == mine && q > p)) + (c.y > mine || (c.y == mine && q + 1 > p)) +
                 (c.z > mine || (c.z == mine && q + 2 > p)) + (c.w > mine || (c.w == mine && q + 3 > p));
      }
    }
    for (int h = 0; h < heads; ++h) {
      const int rank = place * heads + h, round = rank / grid, at = rank - round * grid;
      if (round < rounds && (round & 1 ? grid - 1 - at : at) == me) list[round] = p * heads + h;
    }
  }
  fence_async_shared();  // TMA writes over `cost`
  return {list, rounds, entries, heads};
}

// --- host ------------------------------------------------------------------------------------------------
struct DeviceLimits {
  int multiprocessors;
};
DeviceLimits device_limits();

// A map needs a tensor, even where no tile of it will be read.
inline View2<const Bf16> some(const View2<const Bf16>& v, const View2<const Bf16>& otherwise) {
  return v.rows > 0 ? v : otherwise;
}

}  // namespace slip::hopper
