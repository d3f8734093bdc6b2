#include "launch/evaluate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "comm/collectives.hpp"
#include "core/progress.hpp"

namespace slip {
namespace {

// How near a tie logits must be for rounding to decide (in logits). Decoding and training round the same
// features to bf16, but not always to the same neighbour, since they add in another order; in bf16 the models
// themselves round at every step. Measured with the tiny run in bf16 on an H200: 14 of 3309 cycles differ,
// the logits up to 0.064 from a tie. Rounding grows with the square root of the depth (8 layers there, 41 of
// an 8B target and its drafter: 2.3) and with the logits (up to three times as large): 0.44. A fault that
// moves them by less shows in many cycles, which parity_fails looks at too.
template <class T> constexpr float kTieTolerance = 0.01f;
template <> constexpr float kTieTolerance<Bf16> = 0.5f;

// The rows of this drafter: by their place in a step, as in training, so that a drafter hears from the
// targets that the plan names, no others.
std::vector<RowId> share(const Plan& plan, const Ranks& ranks, int32_t kind, int64_t rows) {
  std::vector<RowId> out;
  for (int64_t i = 0; i < rows; ++i)
    if (plan.drafter_rank(i % plan.rows_per_step) == ranks.drafter_index()) out.push_back({kind, 0, 0, i});
  return out;
}

}  // namespace

template <class T>
StepSums evaluate_rows(const RunOptions& o, const RunInputs& in, const Plan& plan, Ranks& ranks,
                       RowTable& rows, const TrainingForward<T>& with, int64_t step, const Queue& queue) {
  StepSums sums;
  const std::vector<RowId> mine = share(plan, ranks, kEvalRow, static_cast<int64_t>(rows.eval_rows().size()));
  size_t asked = 0;
  Progress progress("held-out documents", static_cast<double>(mine.size()), "rows of this rank");
  for (const RowId& id : mine) {
    while (asked < mine.size() && with.feed.try_request(mine[asked])) ++asked;
    const RowTokens tokens = rows.read(id);
    // Always the same anchors, whatever the run's seed: evaluations of different runs compare.
    const RowBlocks blocks = make_blocks(tokens, in.drafter, in.label_mask, {o.config.eval.anchors, 0, 0});
    ranks.at(step, "evaluate");
    const Features features = with.feed.get(id, tokens);
    const Packed packed = with.row.set(tokens.ids, tokens.lengths, queue);
    const auto row_sums =
        run_row<T>(with.drafter, with.pass, features.data, features.tokens, packed.position, blocks,
                   with.frozen.embed, with.frozen.head, in.rule, RowMode::evaluate, queue);
    with.feed.release(features);
    if (!row_sums) fail(fmt::format("held-out row {}: the features hold NaN or infinity", id.index));
    sums += *row_sums;
    sums.rows += 1;
    sums.tokens += static_cast<double>(tokens.ids.size());
    progress.add(1);
  }
  return sums;
}

template <class T>
PromptEvaluator<T>::PromptEvaluator(const RunOptions& o, const RunInputs& in, const Plan& plan, Ranks& ranks,
                                    RowTable& rows, const TargetWeights<T>& frozen, Arena& arena,
                                    const Queue& queue)
    : o_(o),
      in_(in),
      plan_(plan),
      ranks_(ranks),
      rows_(rows),
      queue_(queue),
      buffers_(make_replay_buffers<T>(in.drafter, arena)) {
  if (plan.ranks > 1) return;
  own_.emplace(in.target, frozen, &in.drafter, in.prompts->longest(), evaluation_rule(o, in), arena, queue);
}

template <class T>
std::vector<Response> PromptEvaluator<T>::decode(FeatureFeed<T>& feed, const std::vector<float>& published,
                                                 int64_t step) {
  const double timeout_s = o_.config.comm.timeout_s;
  if (!own_) {
    feed.call_targets();
    std::vector<Bf16> bits(published.size());
    std::transform(published.begin(), published.end(), bits.begin(), to_bf16);
    return ask_targets(ranks_, plan_, *in_.prompts, bits, step, timeout_s);
  }
  set_weights(own_->drafter(), published, queue_);
  std::vector<Response> out;
  for (const Prompt& p : in_.prompts->list) {
    ranks_.at(step, "decode");
    out.push_back(own_->answer(p));
  }
  return out;
}

template <class T>
Parity PromptEvaluator<T>::replay(const TrainingForward<T>& with, const std::vector<Response>& responses,
                                  int64_t step) {
  Parity mine;
  const std::vector<RowId> ids =
      share(plan_, ranks_, kReplayRow, static_cast<int64_t>(rows_.replay_rows().size()));
  if (ranks_.phases != nullptr &&
      ranks_.phases->fault_point(step, "replay"))  // as if it were another drafter
    set_weights(with.drafter, initial_parameters(in_.drafter, with.drafter.layout, 1), queue_);
  size_t asked = 0;
  for (const RowId& id : ids) {
    while (asked < ids.size() && with.feed.try_request(ids[asked])) ++asked;
    const RowTokens tokens = rows_.read(id);
    std::vector<DecodedCycle> cycles;
    const RowBlocks blocks = replay_blocks(tokens, in_.drafter, responses, cycles);
    ranks_.at(step, "evaluate");
    const Features features = with.feed.get(id, tokens);
    const Packed packed = with.row.set(tokens.ids, tokens.lengths, queue_);
    const auto replayed = replay_row<T>(with.drafter, with.pass, buffers_, features.data, features.tokens,
                                        packed.position, blocks, with.frozen.embed, with.frozen.head, queue_);
    with.feed.release(features);
    if (!replayed) fail("the features of a decoded response hold NaN or infinity");
    compare_cycles(mine, *in_.prompts, responses, cycles, *replayed, kTieTolerance<T>);
  }
  if (ranks_.drafter_count() == 1) return mine;
  const std::array<double, 5> own = {mine.cycles, mine.equal, mine.near_ties, mine.different,
                                     mine.largest_gap};
  std::vector<std::array<double, 5>> all(static_cast<size_t>(ranks_.drafter_count()));
  allgather(ranks_.drafters, own.data(), sizeof own, all.data(), deadline_in(o_.config.comm.timeout_s),
            "the parity check");
  Parity sum;
  sum.first = mine.first;
  for (const auto& a : all) {
    sum.cycles += a[0], sum.equal += a[1], sum.near_ties += a[2], sum.different += a[3];
    sum.largest_gap = std::max(sum.largest_gap, a[4]);
  }
  return sum;
}

template <class T>
DecodedEvaluation PromptEvaluator<T>::run(const TrainingForward<T>& with, const std::vector<float>& published,
                                          int64_t step) {
  const Clock::time_point began = Clock::now();
  const std::vector<Response> responses = decode(with.feed, published, step);
  DecodedEvaluation out;
  out.seconds = seconds_since(began);
  out.all = acceptance_of(responses, in_.drafter.block);
  out.families = acceptance_by_family(*in_.prompts, responses, in_.drafter.block);
  rows_.set_replay(replay_rows(*in_.prompts, responses, o_.config.data.row_tokens));
  out.parity = replay(with, responses, step);
  return out;
}

template class PromptEvaluator<float>;
template StepSums evaluate_rows(const RunOptions&, const RunInputs&, const Plan&, Ranks&, RowTable&,
                                const TrainingForward<float>&, int64_t, const Queue&);
#if SLIP_HAVE_CUDA
template StepSums evaluate_rows(const RunOptions&, const RunInputs&, const Plan&, Ranks&, RowTable&,
                                const TrainingForward<Bf16>&, int64_t, const Queue&);
template class PromptEvaluator<Bf16>;
#endif

}  // namespace slip
