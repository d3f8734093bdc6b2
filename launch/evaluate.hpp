// The drafter ranks' side of an evaluation: held-out rows; and decoding inside a run (prompt_evaluation.hpp
// says who decodes), then the parity check through the rows, the mailbox and the forward of training. One
// rank alone decodes itself.
#pragma once
#include <optional>

#include "launch/feature_feed.hpp"
#include "launch/prompt_evaluation.hpp"

namespace slip {

// What a drafter rank trains with and the check borrows.
template <class T> struct TrainingForward {
  Drafter<T>& drafter;  // holds the published weights meanwhile
  PassBuffers<T>& pass;
  PackedRow& row;
  FeatureFeed<T>& feed;
  const TargetWeights<T>& frozen;
};

// This drafter's share of the held-out rows, with the weights of training. The caller sums over the drafters.
template <class T>
StepSums evaluate_rows(const RunOptions&, const RunInputs&, const Plan&, Ranks&, RowTable&,
                       const TrainingForward<T>&, int64_t step, const Queue&);

template <class T> class PromptEvaluator {
 public:
  PromptEvaluator(const RunOptions&, const RunInputs&, const Plan&, Ranks&, RowTable&,
                  const TargetWeights<T>& frozen, Arena&, const Queue&);

  // Collective over the drafters, and the targets answer the call. `published`: the weights as a checkpoint
  // holds them; needed on drafter 0. The same on every drafter, but for `parity.first`, which only the rank
  // that saw it has.
  DecodedEvaluation run(const TrainingForward<T>&, const std::vector<float>& published, int64_t step);

 private:
  std::vector<Response> decode(FeatureFeed<T>&, const std::vector<float>& published, int64_t step);
  Parity replay(const TrainingForward<T>&, const std::vector<Response>&, int64_t step);

  const RunOptions& o_;
  const RunInputs& in_;
  const Plan& plan_;
  Ranks& ranks_;
  RowTable& rows_;
  const Queue& queue_;
  ReplayBuffers<T> buffers_;
  std::optional<PromptDecoder<T>> own_;  // one rank alone
};

}  // namespace slip
