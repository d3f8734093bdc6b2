// The frozen target with what it remembers of a response: keys and values of attention layers, states of
// gated delta nets. Tokens are run at the end and stay there once they are accepted.
#pragma once
#include <span>
#include <vector>

#include "decode/delta_cache.hpp"
#include "decode/speculate.hpp"

namespace slip {

struct CacheLimits {
  int64_t positions;  // longest prompt, response and block together
  int64_t tokens;     // of one pass; a longer prompt takes several
  int64_t choices;    // of one pass: the last so many tokens
};

struct Sampling {
  float temperature = 0;
  uint64_t seed = 0, sequence = 0;  // sequence: the prompt's number
};

template <class T> struct CachedTarget {
  Target<T> target;
  std::vector<int64_t> taps;  // the drafter's, then the last layer
  CacheLimits limits;
  std::vector<View2<T>>
      kv;  // per layer (positions, 2*kv_heads*d): rotated keys, then values; empty: no attention
  DeltaCache<T> delta;
  int64_t length = 0;    // rows that hold accepted tokens; what follows is overwritten by the next pass
  Bf16* features;        // [drafter's taps][tokens][H] of the last pass, rounded as training rounds them
  View2<Acc<T>> logits;  // (choices, V)
  int *ids, *position;   // (tokens), (positions): 0, 1, ..
  int* token;            // (choices), and behind them the margins
  Acc<T>* scratch;       // of the attention
};
template <class T>
CachedTarget<T> make_cached_target(const TargetModel&, TargetWeights<T>,
                                   const std::vector<int64_t>& drafter_taps, const CacheLimits&, Arena&,
                                   const Queue&);

// Runs `ids` at positions length, length + 1, ..; `length` stays. Fills choices with what the target says
// after each of the last choices.size() tokens. Waits for the queue.
template <class T>
void target_pass(CachedTarget<T>&, std::span<const int32_t> ids, const Sampling&, std::span<Choice> choices,
                 const Queue&);
// The first `count` tokens of the last pass are accepted, the others forgotten: `length` grows.
template <class T> void accept_tokens(CachedTarget<T>&, int64_t count, const Queue&);
// The next pass begins another response.
template <class T> void restart(CachedTarget<T>&);

}  // namespace slip
