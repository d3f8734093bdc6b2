// Which rows a drafter rank trains in each step, and how far it has asked for them ahead.
#pragma once
#include <functional>
#include <vector>

#include "launch/inputs.hpp"
#include "launch/plan.hpp"
#include "launch/row_table.hpp"

namespace slip {

class RowRequests {
 public:
  // `drafter`: the index of this rank among the drafters. The references outlive this.
  RowRequests(const RunOptions&, const Plan&, RowTable&, int drafter);

  // The rows of a step that this rank trains, and the steps of an epoch.
  std::vector<RowId> of_step(int64_t epoch, int64_t epoch_step) const;
  int64_t steps_of_epoch(int64_t epoch) const;

  // Training begins, or goes on, where `state` is.
  void start(const TrainerState& state);
  // Calls `request` with the next rows, always in order, until it returns false: nothing free. Never goes
  // past a step after which there may be an evaluation (`evaluates_after`) or the end: its rows would be in
  // the way. (A skipped step moves that point; then the requests just go on.)
  void ask_ahead(const TrainerState& state, const std::function<bool(int64_t step)>& evaluates_after,
                 const std::function<bool(const RowId&)>& request);
  // The rows of a step are trained: `state` moves to the next step of the data.
  void advance(TrainerState& state);

 private:
  const RunOptions& o_;
  const Plan& plan_;
  RowTable& rows_;
  int drafter_;
  int64_t epoch_ = 0, step_ = 0, in_step_ = 0;  // of the next row to ask for
  int64_t steps_ahead_ = 0;
};

}  // namespace slip
