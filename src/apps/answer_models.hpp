// What `decode` and `generate` answer prompts with: read and refused before memory is taken, then loaded, by
// all ranks.
#pragma once
#include <optional>

#include "apps/answer_options.hpp"
#include "comm/mpi.hpp"
#include "device/arena.hpp"
#include "io/prompts.hpp"
#include "launch/prompt_decoder.hpp"
#include "launch/start.hpp"

namespace slip {

// Seconds that a rank waits for another that has as much to do, or for its next response.
constexpr double kAnswerTimeout = 600;

struct AnswerModels {
  TargetModel target;
  std::optional<DrafterModel> drafter;  // none: plain decoding
  std::vector<int32_t> stops;
  Prompts prompts;
};
// Refuses what does not fit together, and weights that are not there; settles o.block.
AnswerModels read_answer_models(AnswerOptions& o);

// Collective over `comm` (null: this process alone): the ranks of a node read the weights once. Null where a
// rank `joins` none, because no prompt is left for it.
template <class T>
std::unique_ptr<PromptDecoder<T>> load_decoder(const AnswerOptions&, const AnswerModels&, const Comm* comm,
                                               const GpuChoice&, bool joins, Arena&, const Queue&);

}  // namespace slip
