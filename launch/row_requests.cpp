#include "launch/row_requests.hpp"

#include "train/rows.hpp"

namespace slip {

RowRequests::RowRequests(const RunOptions& o, const Plan& plan, RowTable& rows, int drafter)
    : o_(o), plan_(plan), rows_(rows), drafter_(drafter) {}

std::vector<RowId> RowRequests::of_step(int64_t epoch, int64_t epoch_step) const {
  const int64_t all = static_cast<int64_t>(rows_.train_rows(epoch).size()),
                per_step = o_.config.train.rows_per_step;
  std::vector<RowId> out;
  for (int64_t r = 0; r < per_step && epoch_step * per_step + r < all; ++r) {
    if (plan_.drafter_rank(r) == drafter_) out.push_back({kTrainRow, 0, epoch, epoch_step * per_step + r});
  }
  return out;
}

int64_t RowRequests::steps_of_epoch(int64_t epoch) const {
  return slip::steps_of_epoch(static_cast<int64_t>(rows_.train_rows(epoch).size()),
                              o_.config.train.rows_per_step);
}

void RowRequests::start(const TrainerState& state) {
  epoch_ = state.epoch;
  step_ = state.epoch_step;
}

void RowRequests::ask_ahead(const TrainerState& state,
                            const std::function<bool(int64_t step)>& evaluates_after,
                            const std::function<bool(const RowId&)>& request) {
  for (;;) {
    const int64_t step = state.step + steps_ahead_;  // updates made when the rows ahead are trained
    if (steps_ahead_ > 0 && (step >= state.total_steps || evaluates_after(step))) return;
    const std::vector<RowId> rows = of_step(epoch_, step_);
    if (in_step_ < static_cast<int64_t>(rows.size())) {
      if (!request(rows[static_cast<size_t>(in_step_)])) return;
      ++in_step_;
      continue;
    }
    in_step_ = 0;
    ++steps_ahead_;
    if (++step_ >= steps_of_epoch(epoch_)) ++epoch_, step_ = 0;
    if (o_.config.data.epochs > 0 && o_.extend == 0 && epoch_ >= o_.config.data.epochs) return;
  }
}

void RowRequests::advance(TrainerState& state) {
  if (++state.epoch_step >= steps_of_epoch(state.epoch)) ++state.epoch, state.epoch_step = 0;
  if (steps_ahead_ > 0) --steps_ahead_;
  if (epoch_ < state.epoch || (epoch_ == state.epoch && step_ < state.epoch_step)) {
    epoch_ = state.epoch, step_ = state.epoch_step, in_step_ = 0;
  }
}

}  // namespace slip
