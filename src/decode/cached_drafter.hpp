// The drafter for decoding: what its forward pass needs and no more, with keys and values of the accepted
// tokens. A block's own keys and values are scratch of its pass, so nothing has to be cropped.
#pragma once
#include <span>
#include <vector>

#include "decode/cached_target.hpp"
#include "model/drafter.hpp"

namespace slip {

template <class T> struct CachedDrafter {
  Drafter<T> drafter;       // block: what is decoded with, up to the trained one; no gradients
  int64_t length = 0;       // tokens whose keys and values the context holds
  View2<Acc<T>> logits;     // (block, V)
  int *ids, *place;         // (block), and behind them (2): anchor and first token
  int *token, *non_finite;  // (block - 1), and behind them (1)
  float* margin;            // (block)
};
// `weights` of the drafter are filled by the caller: set_weights or synthetic_weights.
template <class T>
CachedDrafter<T> make_cached_drafter(DrafterModel, int64_t block, const CacheLimits&, Arena&, const Queue&);

// Appends the first `count` tokens of the target's last pass to the context.
template <class T>
void extend_context(CachedDrafter<T>&, const CachedTarget<T>&, int64_t count, const Queue&);

// block[0] is the token at position `length`; fills the rest with the drafts. Waits for the queue.
template <class T>
void propose(CachedDrafter<T>&, const CachedTarget<T>&, std::span<int32_t> block, const Queue&);

}  // namespace slip
