// What gated delta net layers remember of one response: per layer the state of the delta rule in fp32 and the
// last inputs of the convolution, both after the last accepted token. A pass leaves them as they are and
// keeps its inputs; once it is known how many of its tokens are accepted, those are applied in the same form,
// token by token, so that rejected tokens leave no trace, not even in the last bit.
//   pass of at most `kept` tokens     any number of its tokens can be accepted
//   longer pass (a piece of a prompt) in chunks; changes the state itself, and is accepted as a whole
#pragma once
#include <vector>

#include "model/target.hpp"

namespace slip {

template <class T> struct DeltaCache {
  std::vector<int64_t> place;     // per layer of the target: its number among the gated delta nets, or -1
  int64_t layers = 0;             // gated delta nets; 0: nothing below is there
  int64_t kept = 0, history = 0;  // tokens; history: taps of the convolution - 1
  View2<T> rows;                  // (layers * (history + kept), columns): before the pass, then of it
  View2<T> conv;                  // (layers * kept, channels): of the pass
  int64_t state_size = 0;         // elements of one layer
  Acc<T>* state = nullptr;        // (layers, value_heads, key_dim, value_dim)
  View2<T> piece;                 // (history + tokens of a longer pass, columns): one for all layers
  View2<T> piece_conv;            // (tokens, channels)
  DeltaDocument* document = nullptr;
  DeltaChunk* chunks = nullptr;
  std::vector<DeltaDocument> host_document;
  std::vector<DeltaChunk> host_chunks;
  int64_t passed = 0;  // tokens of the last pass that are neither accepted nor forgotten
};
// choices: tokens that a pass may have and be accepted in part; tokens: of the longest pass.
template <class T>
DeltaCache<T> make_delta_cache(const TargetModel&, int64_t choices, int64_t tokens, Arena&);

// A pass of `tokens` tokens after `length` accepted ones: what target_layers asks for. Earlier tokens that
// were not accepted are forgotten. The queue must have passed the pass before.
template <class T> DeltaRow begin_delta_pass(DeltaCache<T>&, int64_t tokens, const Queue&);
template <class T>
DeltaCarry<T> delta_carry(const DeltaCache<T>&, int64_t layer, int64_t length, const Queue&);
// The first `count` tokens of the pass are accepted; `length`: before them.
template <class T>
void accept_delta(DeltaCache<T>&, const Target<T>&, int64_t length, int64_t count, const Queue&);

}  // namespace slip
