// The loop of a drafter rank: receive, train, sum over the ranks, update. All drafters take the same
// decisions, because they decide from sums only.
#include <fmt/format.h>

#include <cmath>
#include <type_traits>

#include "comm/collectives.hpp"
#include "core/log.hpp"
#include "kernels/features.hpp"
#include "launch/checkpoint_saver.hpp"
#include "launch/evaluate.hpp"
#include "launch/feature_feed.hpp"
#include "launch/frozen_weights.hpp"
#include "launch/gradient_sum.hpp"
#include "launch/rank.hpp"
#include "launch/report.hpp"
#include "launch/row_requests.hpp"
#include "launch/run_log.hpp"
#include "launch/signals.hpp"
#include "train/optimizer.hpp"
#include "train/schedule.hpp"
#include "train/step.hpp"

namespace slip {
namespace {

// What a drafter's time went on; the metrics have that of drafter 0 alone.
struct Spent {
  double rows = 0, seconds = 0, features_s = 0, sums_s = 0, exposed_s = 0;
  void add(double step_rows, const StepReport& r) {
    rows += step_rows, seconds += r.seconds, features_s += r.wait_features_s;
    sums_s += r.reduce_s, exposed_s += r.reduce_exposed_s;
  }
  std::string text() const {
    return fmt::format(
        "{} rows in {:.1f} s of steps, {:.1f} s waiting for features; sums of gradients took {:.1f} s, "
        "{:.1f} "
        "s of it after the backward pass",
        rows, seconds, features_s, sums_s, exposed_s);
  }
};

template <class T> class DrafterRank {
 public:
  DrafterRank(const RunOptions& o, const RunInputs& in, const Plan& plan, Ranks& ranks, Arena& arena,
              const Queue& queue)
      : o_(o),
        in_(in),
        plan_(plan),
        ranks_(ranks),
        queue_(queue),
        state_(in.state),
        rows_(in, o.config.data),
        requests_(o, plan, rows_, ranks.drafter_index()),
        frozen_(load_frozen(arena)),
        drafter_(make_drafter<T>(in.drafter, in.limits, arena, queue)),
        pass_(make_pass_buffers<T>(in.drafter, in.limits, arena)),
        optimizer_(make_optimizer<T>(drafter_, o.config.train, arena, queue)),
        row_("drafter.row", o.config.data.row_tokens, arena),
        feed_(o, in, plan, ranks, rows_, frozen_, arena, queue),
        gradients_(drafter_, ranks, o.config.comm, arena, queue),
        saver_(o.config.checkpoint, checkpoint_folder(o.config), in.drafter, drafter_.layout, ranks.phases,
               [this] { report(); }) {
    if (in.prompts) prompts_.emplace(o, in, plan, ranks, rows_, frozen_, arena, queue);
  }

  int run();

 private:
  // The embedding and the head; with one rank also the layers of the target.
  TargetWeights<T> load_frozen(Arena& arena) {
    const TargetParts parts = plan_.ranks == 1 ? target_parts(in_, true) : TargetParts{0, true};
    return frozen_weights<T>(o_, in_, parts, ranks_, arena, queue_);
  }
  bool writes() const { return ranks_.drafter_index() == 0; }
  bool saves() const { return !o_.synthetic || o_.publish; }
  Deadline deadline() const { return deadline_in(o_.config.comm.timeout_s); }

  void load_start();
  bool data_left() const {
    return o_.config.data.epochs == 0 || state_.epoch < o_.config.data.epochs || o_.extend > 0;
  }
  bool evaluates_after(int64_t step) const;
  void sum_over_ranks(StepSums&);
  StepSums train_rows();
  TrainingForward<T> forward() { return {drafter_, pass_, row_, feed_, frozen_}; }
  DecodedEvaluation evaluate_prompts();
  void report_evaluation();
  bool update(const StepSums&, const std::optional<double>& squares, StepReport&);
  void save(const char* why);
  void report() const;

  const RunOptions& o_;
  const RunInputs& in_;
  const Plan& plan_;
  Ranks& ranks_;
  const Queue& queue_;
  TrainerState state_;
  RowTable rows_;
  RowRequests requests_;
  TargetWeights<T> frozen_;
  Drafter<T> drafter_;
  PassBuffers<T> pass_;
  Optimizer<T> optimizer_;
  PackedRow row_;
  FeatureFeed<T> feed_;
  std::unique_ptr<RunLog> log_;
  GradientSum<T> gradients_;
  std::optional<PromptEvaluator<T>> prompts_;
  double waited_s_ = 0, ready_ = 0;  // of this step
  Spent spent_;
  int64_t saved_step_ = -1;
  CheckpointSaver saver_;
  Clock::time_point started_ = Clock::now(), saved_at_ = Clock::now();
};

template <class T> void DrafterRank<T>::load_start() {
  quantize_head<T>(pass_, frozen_.head, queue_);
  if (in_.checkpoint) {
    LoadedCheckpoint c = load_checkpoint(*in_.checkpoint, drafter_.layout);
    set_masters(optimizer_, drafter_, c.optimizer.master, queue_);
    const int64_t bytes = drafter_.layout.count * static_cast<int64_t>(sizeof(float));
    copy_to_device(optimizer_.m, c.optimizer.m.data(), bytes, queue_);
    copy_to_device(optimizer_.v, c.optimizer.v.data(), bytes, queue_);
    synchronize(queue_);
    optimizer_.updates = state_.step;
    saved_step_ = state_.step;
    if (optimizer_.round_weight) {  // the working weights of the next step are the rounded masters, as after
                                    // an update
      std::vector<float> rounded = c.optimizer.master;
      for (float& x : rounded) x = round_bf16(x);
      set_weights(drafter_, rounded, queue_);
    }
  } else if (!o_.config.drafter.init_from.empty()) {
    set_masters(optimizer_, drafter_, published_parameters(drafter_.layout, o_.config.drafter.init_from),
                queue_);
  } else {
    new_masters(optimizer_, drafter_, o_.config.data.seed, queue_);
  }
  requests_.start(state_);
}

template <class T> bool DrafterRank<T>::evaluates_after(int64_t step) const {
  if (!in_.eval && !prompts_) return false;
  const int64_t every = o_.config.eval.every_steps;
  return step == 0 || step == state_.total_steps || (every > 0 && step % every == 0);
}

template <class T> void DrafterRank<T>::sum_over_ranks(StepSums& s) {
  if (ranks_.drafter_count() > 1)
    allreduce_sum(ranks_.drafters, s.values(), deadline(), "the sums of a step");
}

template <class T> StepSums DrafterRank<T>::train_rows() {
  zero(drafter_.grads, drafter_.layout.count * static_cast<int64_t>(sizeof(Acc<T>)), queue_);
  StepSums sums;
  const std::vector<RowId> mine = requests_.of_step(state_.epoch, state_.epoch_step);
  for (const RowId& id : mine) {
    requests_.ask_ahead(
        state_, [this](int64_t step) { return evaluates_after(step); },
        [this](const RowId& next) { return feed_.try_request(next); });
    const RowTokens tokens = rows_.read(id);
    const RowBlocks blocks = make_blocks(tokens, in_.drafter, in_.label_mask,
                                         {o_.config.train.anchors, o_.config.data.seed, id.epoch});
    ranks_.at(state_.step + 1, "transfer");
    const Features features = feed_.get(id, tokens);
    ranks_.at(state_.step + 1, "train");
    waited_s_ += features.waited_s;
    ready_ += features.ready;
    const Packed packed = row_.set(tokens.ids, tokens.lengths, queue_);
    OnReady on_ready;  // after the last row gradients are final
    if (&id == &mine.back()) on_ready = [this](int64_t begin) { gradients_.ready(begin); };
    const auto row_sums = run_row<T>(drafter_, pass_, features.data, features.tokens, packed.position, blocks,
                                     frozen_.embed, frozen_.head, in_.rule, RowMode::train, queue_, on_ready);
    feed_.release(features);
    if (row_sums) {
      sums += *row_sums;
      sums.rows += 1;
      sums.tokens += static_cast<double>(tokens.ids.size());
      add_documents(sums, tokens);
    } else {
      sums.bad_rows += 1;
      log_warn(fmt::format(
          "row {} of epoch {}: the features hold NaN or infinity; the step will be skipped (documents {})",
          id.index, id.epoch, fmt::join(tokens.document_ids, ", ")));
    }
  }
  if (stop_signalled() || feed_.target_asked_to_stop()) sums.stop = 1;
  return sums;
}

// With the weights that a checkpoint would hold; those of training are there again afterwards, bit by bit.
template <class T> DecodedEvaluation DrafterRank<T>::evaluate_prompts() {
  const bool rounded = std::is_same_v<T, Bf16> || optimizer_.round_weight;
  std::vector<float> published;
  if (writes() || !rounded) {
    published.resize(static_cast<size_t>(drafter_.layout.count));
    copy_to_host(published.data(), optimizer_.master, drafter_.layout.count * 4, queue_);
    synchronize(queue_);
    for (float& x : published) x = round_bf16(x);
  }
  if (!rounded) set_weights(drafter_, published, queue_);
  DecodedEvaluation out = prompts_->run(forward(), published, state_.step);
  if (!rounded)
    cast<T, Acc<T>, T>(
        {{optimizer_.master, 1, drafter_.layout.count}, {drafter_.weights, 1, drafter_.layout.count}},
        queue_);
  return out;
}

template <class T> void DrafterRank<T>::report_evaluation() {
  std::optional<StepSums> sums;
  std::optional<DecodedEvaluation> decoded;
  if (in_.eval) {
    sums = evaluate_rows<T>(o_, in_, plan_, ranks_, rows_, forward(), state_.step, queue_);
    sum_over_ranks(*sums);
  }
  if (prompts_) decoded = evaluate_prompts();
  if (log_) log_->evaluation(state_.step, sums, decoded);
  if (decoded) state_.decoded_acceptance = decoded->all.pooled;
  if (!decoded || !parity_fails(decoded->parity)) return;
  // Drafter 0 says it, with the example of the lowest drafter that has one.
  const bool saw = decoded->parity.different == 0 || !decoded->parity.first.empty();
  Verdict verdict{saw ? kFailed : kOk, parity_complaint(decoded->parity)};
  if (ranks_.drafter_count() > 1) verdict = agree(ranks_.drafters, verdict, deadline(), "the parity check");
  if (writes()) fail(verdict.message);
  fail_peer("");
}

// One optimizer update from the summed gradients (and the sum of their squares, if known); false when the
// step had to be skipped. All ranks see the same sums and norm, so they skip alike.
template <class T>
bool DrafterRank<T>::update(const StepSums& sums, const std::optional<double>& squares, StepReport& report) {
  const double denominator = sums.denominator(in_.rule.kind);
  double norm = 0;
  if (denominator > 0)
    norm = squares ? std::sqrt(*squares) / denominator
                   : gradient_norm(optimizer_, drafter_, denominator, queue_);
  const bool finite = sums.bad_rows == 0 && std::isfinite(norm) && std::isfinite(sums.loss);
  if (finite && denominator > 0) {
    report.lr = learning_rate(o_.config.train, state_.step, state_.total_steps);
    state_.decoded_acceptance = 0;
    optimizer_step(optimizer_, drafter_, o_.config.train, report.lr, denominator, norm, queue_);
    report.grad_norm = norm;
    ++state_.step;
    state_.bad_in_a_row = 0;
    return true;
  }
  if (finite) {
    if (writes())
      log_warn(fmt::format("the step after step {} is skipped: its rows have no label", state_.step));
    return false;
  }
  ++state_.bad_steps;
  ++state_.bad_in_a_row;
  std::vector<int64_t> documents;
  for (const RowId& id : requests_.of_step(state_.epoch, state_.epoch_step)) {
    const RowTokens row = rows_.read(id);
    documents.insert(documents.end(), row.document_ids.begin(), row.document_ids.end());
  }
  log_warn(fmt::format(
      "the step after step {} is skipped: {} NaN or infinity; its documents on this rank: {}", state_.step,
      sums.bad_rows > 0 ? "features hold" : "the loss or the gradients hold", fmt::join(documents, ", ")));
  if (state_.bad_in_a_row > o_.config.train.max_bad_steps) {
    fail(fmt::format(
        "{} steps in a row held NaN or infinity, train.max_bad_steps allows {}; they are named above",
        state_.bad_in_a_row, o_.config.train.max_bad_steps));
  }
  return false;
}

template <class T> void DrafterRank<T>::save(const char* why) {
  saved_at_ = Clock::now();
  if (saved_step_ == state_.step) return;
  saved_step_ = state_.step;
  ranks_.at(state_.step, "save");
  if (!writes()) return;
  if (!saves())
    return log_info("no checkpoint is written: the weights are synthetic (--publish-synthetic writes it)");
  saver_.start({optimizer_.master, optimizer_.m, optimizer_.v}, state_, why, queue_);
}

// A page that cannot be written is no reason to lose a run.
template <class T> void DrafterRank<T>::report() const {
  const std::string& dir = o_.config.log.dir;
  try {
    write_report({dir}, dir + "/report.html");
  } catch (const std::exception& e) {
    log_warn(fmt::format("no report: {}", e.what()));
  }
}

template <class T> int DrafterRank<T>::run() {
  load_start();
  const TrainConfig& train = o_.config.train;
  if (writes()) log_ = std::make_unique<RunLog>(o_, in_, plan_json(plan_), state_.step);
  if (state_.step == 0 && evaluates_after(0)) report_evaluation();
  bool stopped = false;
  Clock::time_point last = Clock::now();
  while (state_.step < state_.total_steps && data_left()) {
    waited_s_ = ready_ = 0;
    const double rows = static_cast<double>(requests_.of_step(state_.epoch, state_.epoch_step).size());
    StepSums sums = train_rows();
    if (train.max_minutes > 0 && seconds_since(started_) > train.max_minutes * 60) sums.stop += 1;
    const bool minutes = o_.config.checkpoint.every_minutes > 0 &&
                         seconds_since(saved_at_) > o_.config.checkpoint.every_minutes * 60;
    ranks_.at(state_.step + 1, "reduce");
    gradients_.ready(0);  // beside them:
    sum_over_ranks(sums);
    const auto summed = gradients_.finish();
    StepReport report{.step = 0,
                      .total = state_.total_steps,
                      .epoch = state_.epoch,
                      .sums = sums,
                      .grad_norm = 0,
                      .lr = 0,
                      .seconds = 0,
                      .wait_features_s = 0,
                      .target_wait_share = 0,
                      .dump_wait_s = 0,
                      .reduce_s = summed.seconds,
                      .reduce_exposed_s = summed.exposed_s};
    const bool updated = update(sums, summed.squares, report);
    saver_.poll();
    requests_.advance(state_);
    report.step = state_.step;
    report.bad_steps = state_.bad_steps;
    report.seconds = seconds_since(last);
    report.wait_features_s = waited_s_;
    report.target_wait_share = feed_.target_wait_share();
    report.dump_wait_s = feed_.dump_wait_s();
    report.rows_ready = rows > 0 ? ready_ / rows : 0;
    report.taps = feed_.tap_times();
    spent_.add(rows, report);
    last = Clock::now();
    if (updated && log_) log_->step(report);
    if (sums.stop > 0) {
      stopped = state_.step < state_.total_steps;
      if (stopped) break;
    }
    const bool evaluated = updated && evaluates_after(state_.step);
    if (evaluated) report_evaluation(), last = Clock::now();
    if (evaluated && o_.config.checkpoint.keep_best > 0) save("evaluated");
    const int64_t every = o_.config.checkpoint.every_steps;
    if (updated && ((every > 0 && state_.step % every == 0) || minutes))
      save("on schedule"), last = Clock::now();
  }
  feed_.finish();
  save(stopped ? "asked to stop" : "the end");
  saver_.wait();
  if (plan_.ranks > 1) log_info(fmt::format("drafter rank {}: {}", ranks_.drafter_index(), spent_.text()));
  if (writes() && !saves()) report();
  if (!writes()) return stopped ? kStopped : kOk;
  if (stopped) {
    log_info(fmt::format("stopped after step {} of {}; go on with --resume auto", state_.step,
                         state_.total_steps));
    return kStopped;
  }
  if (const std::string sources = log_->sources_text(); !sources.empty()) log_info(sources);
  std::string done = fmt::format("done: {} steps in {:.1f} s", state_.step, seconds_since(started_));
  done += log_->evaluation_text();
  if (saves())
    done += fmt::format("; the drafter is {}/step-{:08}/drafter", checkpoint_folder(o_.config), state_.step);
  log_info(done);
  return kOk;
}

}  // namespace

template <class T>
std::vector<Arena::Entry> drafter_memory(const RunOptions& o, const RunInputs& in, const Plan& plan) {
  Arena arena(o.device, Arena::Mode::measure);
  Ranks none;
  const Queue queue{o.device};
  DrafterRank<T>(o, in, plan, none, arena, queue);
  return arena.entries();
}

template <class T>
int run_drafter(const RunOptions& o, const RunInputs& in, const Plan& plan, Ranks& ranks,
                const Queue& queue) {
  Arena arena(queue.device);
  DrafterRank<T> rank(o, in, plan, ranks, arena, queue);
  log_info(fmt::format("drafter rank {}: memory\n{}", ranks.drafter_index(), arena.table(12)));
  return rank.run();
}

template std::vector<Arena::Entry> drafter_memory<float>(const RunOptions&, const RunInputs&, const Plan&);
template int run_drafter<float>(const RunOptions&, const RunInputs&, const Plan&, Ranks&, const Queue&);
#if SLIP_HAVE_CUDA
template std::vector<Arena::Entry> drafter_memory<Bf16>(const RunOptions&, const RunInputs&, const Plan&);
template int run_drafter<Bf16>(const RunOptions&, const RunInputs&, const Plan&, Ranks&, const Queue&);
#endif

}  // namespace slip
