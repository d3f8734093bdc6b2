// The training forward at anchors of decoded responses: how many drafts it would have had accepted. It must
// be as many as decoding accepted (dflash.md 10, invariant 1); what trains is then what is served.
#pragma once
#include <optional>
#include <vector>

#include "train/step.hpp"

namespace slip {

struct ReplayedBlock {
  int labels = 0;           // labels that count after the anchor, without a gap: drafts that can be compared
  int accepted = 0;         // leading ones among them that are the drafter's own choice
  std::vector<float> lead;  // (min(accepted + 1, labels)) logit of the label minus the best other; the last
                            // one of a block that was not accepted to the end is not above 0
};

// What the replay needs beside the buffers of a pass.
template <class T> struct ReplayBuffers {
  View2<Acc<T>> logits;  // (block, V)
  int* token;            // (block)
  float* margin;         // (block)
};
template <class T> ReplayBuffers<T> make_replay_buffers(const DrafterModel&, Arena&);

// One row as `run_row` takes it, with anchors where cycles began. nullopt when a feature is not finite.
template <class T>
std::optional<std::vector<ReplayedBlock>> replay_row(Drafter<T>&, PassBuffers<T>&, const ReplayBuffers<T>&,
                                                     const Bf16* features, int64_t slot_tokens,
                                                     const int* position, const RowBlocks&,
                                                     View2<const T> embed, View2<const T> head, const Queue&);

}  // namespace slip
