#include <fmt/format.h>

#include "core/log.hpp"
#include "kernels/features.hpp"
#include "launch/frozen_weights.hpp"
#include "launch/prompt_evaluation.hpp"
#include "launch/rank.hpp"
#include "launch/row_table.hpp"
#include "launch/signals.hpp"
#include "launch/training_dump.hpp"
#include "model/target.hpp"

namespace slip {
namespace {

template <class T> struct TargetRank {
  Target<T> target;
  PackedRow row;
  Bf16* ring;
  int ring_taps;
  std::optional<PromptDecoder<T>> decoder;
};

// A slow drafter must not hold up the others: the ring has room for what all of them may have requested.
int ring_size(const RunOptions& o, const RunInputs& in, const Plan& plan) {
  return static_cast<int>(in.drafter.taps.size()) * static_cast<int>(o.config.roles.queue_rows) *
         plan.drafters;
}

template <class T>
TargetRank<T> make_target_rank(const RunOptions& o, const RunInputs& in, const Plan& plan, const Ranks& ranks,
                               Arena& arena, const Queue& queue) {
  const int64_t tokens = o.config.data.row_tokens;
  Target<T> target = make_target<T>(
      o, in, frozen_weights<T>(o, in, target_parts(in, false), ranks, arena, queue), arena, queue);
  PackedRow row("target.row", tokens, arena);
  const int taps = ring_size(o, in, plan);
  Bf16* ring = arena.take<Bf16>("target.ring", taps * tokens * in.target.hidden, "roles.queue_rows");
  TargetRank<T> rank{std::move(target), std::move(row), ring, taps, {}};
  if (in.prompts) {
    rank.decoder.emplace(in.target, rank.target.weights, &in.drafter, in.prompts->longest(),
                         evaluation_rule(o, in), arena, queue);
  }
  return rank;
}

// The step that a training row belongs to, as if no step had been skipped; held-out rows: the last one.
class StepOfRow {
 public:
  StepOfRow(const RunInputs& in, int64_t rows_per_step, RowTable& rows)
      : rows_per_step_(rows_per_step),
        rows_(rows),
        epoch_(in.state.epoch),
        before_(in.state.step - in.state.epoch_step),
        last_(in.state.step) {}
  int64_t operator()(const RowId& id) {
    if (id.kind != kTrainRow) return last_;
    while (epoch_ < id.epoch)
      before_ += steps_of_epoch(static_cast<int64_t>(rows_.train_rows(epoch_++).size()), rows_per_step_);
    last_ = before_ + id.index / rows_per_step_ + 1;
    if (id.epoch < epoch_)
      last_ -= steps_of_epoch(static_cast<int64_t>(rows_.train_rows(id.epoch).size()), rows_per_step_);
    return last_;
  }
  int64_t last() const { return last_; }

 private:
  int64_t rows_per_step_;
  RowTable& rows_;
  int64_t epoch_, before_, last_;  // steps before this epoch
};

}  // namespace

template <class T>
Target<T> make_target(const RunOptions& o, const RunInputs& in, TargetWeights<T> weights, Arena& arena,
                      const Queue& queue) {
  const int64_t tokens = o.config.data.row_tokens;
  Target<T> target{in.target, std::move(weights), make_target_buffers<T>(in.target, tokens, arena, queue)};
  if (o.config.target.attention != "cudnn") return target;
  target.cudnn = make_cudnn_attention(in.target, tokens, arena);
  if (!arena.measuring()) {
    log_info(fmt::format("cuDNN {} attention plan built in {:.1f} s (compiles its kernel through NVRTC)",
                         cudnn_version(), target.cudnn->build_seconds()));
  }
  return target;
}

template <class T>
std::vector<Arena::Entry> target_memory(const RunOptions& o, const RunInputs& in, const Plan& plan) {
  Arena arena(o.device, Arena::Mode::measure);
  make_target_rank<T>(o, in, plan, {}, arena, Queue{o.device});
  return arena.entries();
}

template <class T>
void run_target(const RunOptions& o, const RunInputs& in, const Plan& plan, Ranks& ranks,
                const Queue& queue) {
  Arena arena(queue.device);
  TargetRank<T> rank = make_target_rank<T>(o, in, plan, ranks, arena, queue);
  log_info(fmt::format("target rank {}: memory\n{}", ranks.mpi->rank(), arena.table(12)));
  RowTable rows(in, o.config.data);
  const int me = ranks.mpi->rank();
  FeatureOutbox outbox(ranks.control, *ranks.transport, feature_shape(o, in), rank.ring, rank.ring_taps,
                       plan.rank[static_cast<size_t>(me)].peers, o.config.comm.timeout_s, queue);
  StepOfRow step(in, o.config.train.rows_per_step, rows);
  const int64_t tokens_of_row = o.config.data.row_tokens;
  ranks.at(in.state.step, "wait");
  while (const std::optional<RowRequest> request = outbox.next()) {
    if (stop_signalled()) outbox.ask_stop();
    if (request->call) {
      const std::vector<Response> responses =
          answer_drafters(*rank.decoder, ranks, *in.prompts, step.last(), o.config.comm.timeout_s, queue);
      rows.set_replay(replay_rows(*in.prompts, responses, tokens_of_row));
      ranks.at(step.last(), "wait");
      continue;
    }
    ranks.at(step(request->row), "capture");
    const RowTokens tokens = rows.read(request->row);
    const bool dumped = ranks.dump != nullptr && ranks.dump->begin(request->row, ranks.mpi->peers(),
                                                                   o.config.comm.timeout_s) != nullptr;
    if (ranks.dump != nullptr) outbox.set_dump_wait(ranks.dump->wait_s());
    outbox.send_header(*request, static_cast<int64_t>(tokens.ids.size()));
    const Packed packed = rank.row.set(tokens.ids, tokens.lengths, queue);
    // Taps leave in the drafter's order; a layer that a later one precedes in the list waits in the ring.
    std::vector<Bf16*> ready(in.drafter.taps.size(), nullptr);
    size_t next = 0;
    const TapStore capture = [&](int tap) {
      ranks.at(step.last(), "transfer");
      return ready[static_cast<size_t>(tap)] = outbox.acquire_tap();
    };
    const OnTap<T> send = [&](int tap, View2<const T>) {
      if (dumped) ranks.dump->keep(tap, ready[static_cast<size_t>(tap)], packed.tokens, queue);
      for (; next < ready.size() && ready[next] != nullptr; ++next)
        outbox.send_tap(*request, static_cast<int>(next), ready[next]);
      ranks.at(step.last(), "capture");
    };
    target_forward<T>(rank.target, packed, in.drafter.taps, queue, send, capture);
    outbox.end_row();
    if (dumped) ranks.dump->end(tokens, queue);
    ranks.at(step.last(), "wait");
  }
  const OutboxStats& s = outbox.stats();
  log_info(
      fmt::format("target rank {}: {} rows, {:.1f} s at work, {:.1f} s waiting for requests, {:.1f} s "
                  "waiting for a free buffer; {} of {} taps had left before their row was computed",
                  me, s.rows, s.busy_s, s.wait_request_s, s.wait_ring_s, s.taps_early, s.taps_sent));
}

template Target<float> make_target(const RunOptions&, const RunInputs&, TargetWeights<float>, Arena&,
                                   const Queue&);
template std::vector<Arena::Entry> target_memory<float>(const RunOptions&, const RunInputs&, const Plan&);
template void run_target<float>(const RunOptions&, const RunInputs&, const Plan&, Ranks&, const Queue&);
#if SLIP_HAVE_CUDA
template Target<Bf16> make_target(const RunOptions&, const RunInputs&, TargetWeights<Bf16>, Arena&,
                                  const Queue&);
template std::vector<Arena::Entry> target_memory<Bf16>(const RunOptions&, const RunInputs&, const Plan&);
template void run_target<Bf16>(const RunOptions&, const RunInputs&, const Plan&, Ranks&, const Queue&);
#endif

}  // namespace slip
