// Decoding inside a run. Ranks that run the target decode, because they alone have its layers: they load all
// of them, its norm and its head, and are sent the drafter as it would be published (masters rounded to bf16,
// from drafter 0). Nothing that training depends on changes. Prompt i belongs to target i mod targets; every
// rank ends up with all responses, in the order of the prompts.
//   drafters: FeatureInbox::call, then `ask_targets`        targets: on the call, `answer_drafters`
// The parity check then runs what was decoded through the rows, the mailbox and the forward of training.
#pragma once
#include "launch/decode_figures.hpp"
#include "launch/prompt_decoder.hpp"
#include "launch/rank.hpp"
#include "train/replay.hpp"

namespace slip {

// How the prompts of eval.prompts are decoded: greedily, with the trained block.
DecodeRule evaluation_rule(const RunOptions&, const RunInputs&);

// `published`: the drafter's weights in the order of its layout, on drafter 0; elsewhere empty.
std::vector<Response> ask_targets(const Ranks&, const Plan&, const Prompts&, std::span<const Bf16> published,
                                  int64_t step, double timeout_s);
template <class T>
std::vector<Response> answer_drafters(PromptDecoder<T>&, const Ranks&, const Prompts&, int64_t step,
                                      double timeout_s, const Queue&);

// Prompts with their responses, packed into rows in their order, as training packs documents; the responses
// are supervised. document_ids are places in `Prompts::list`. What has no cycle or no token of the response
// within a row's length is left out.
std::vector<RowTokens> replay_rows(const Prompts&, const std::vector<Response>&, int64_t row_tokens);

struct DecodedCycle {
  size_t prompt, cycle;  // places in the list and in the response
};
// Blocks that begin where decoding began its cycles.
RowBlocks replay_blocks(const RowTokens&, const DrafterModel&, const std::vector<Response>&,
                        std::vector<DecodedCycle>& cycles);

// Sums, so that ranks add.
struct Parity {
  double cycles = 0;       // replayed
  double equal = 0;        // accepted as many drafts as in decoding
  double near_ties = 0;    // another number, where two logits are nearer than `tolerance`: rounding decides
  double different = 0;    // another number otherwise: training and serving do not compute the same
  double largest_gap = 0;  // of the logits where a number differed: how near a tie they were
  std::string first;       // of those that are different, in words
};
// `tolerance`: in logits.
void compare_cycles(Parity&, const Prompts&, const std::vector<Response>&, std::span<const DecodedCycle>,
                    std::span<const ReplayedBlock>, float tolerance);
// A difference, or more near ties than rounding explains (a tenth of the cycles).
bool parity_fails(const Parity&);
// What that means and where to look; one line.
std::string parity_complaint(const Parity&);

struct DecodedEvaluation {
  Acceptance all;
  std::vector<FamilyAcceptance> families;
  double seconds = 0;  // of decoding
  Parity parity;
};

}  // namespace slip
