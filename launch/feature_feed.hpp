// Where a drafter's features come from: feature shards for rows that they hold (data.features), the mailbox
// for the others, or with one rank a target of its own that runs when asked.
#pragma once
#include <optional>

#include "comm/mailbox.hpp"
#include "launch/feature_disk.hpp"
#include "launch/rank.hpp"
#include "launch/row_table.hpp"
#include "model/target.hpp"

namespace slip {

struct Features {
  const Bf16* data = nullptr;  // [taps][tokens][hidden], where the queue's memory is
  int64_t tokens = 0;
  double waited_s = 0;
  int slot = -1;
  bool from_disk = false;
  int ready = 0;  // rows that lay ready besides
};

// Of the rows that targets finished since the last call: seconds that transfers took beyond the forward that
// made them (mean over the targets; NaN: not measured), and the share of taps that left before it ended.
struct TapTimes {
  double late_s = 0, early_share = 0;
};

template <class T> class FeatureFeed {
 public:
  FeatureFeed(const RunOptions&, const RunInputs&, const Plan&, Ranks&, RowTable&, const TargetWeights<T>&,
              Arena&, const Queue&);

  // Has the row read ahead, or asks the target rank that serves it to begin; false: no free slot, or nothing
  // that works ahead.
  bool try_request(const RowId&);
  Features get(const RowId&, const RowTokens&);
  void release(const Features&);
  void call_targets() {  // nothing may be under way
    if (inbox_) inbox_->call();
  }
  void finish() {
    if (inbox_) inbox_->finish();
  }
  bool target_asked_to_stop() const { return stop_asked_; }
  // Mean over the targets of the share of their time that drafters held them up, since the last call.
  double target_wait_share();
  // Seconds that the targets waited for the disk of their dump (dump.dir), the mean of them, since the last
  // call.
  double dump_wait_s();
  TapTimes tap_times();

 private:
  struct Local {  // the target of a single rank
    Target<T> target;
    PackedRow row;
    Bf16* slot;
  };
  struct Seen {
    double busy = 0, wait = 0, dump = 0, last_busy = 0, last_wait = 0, last_dump = 0;
    double late = 0, last_late = 0;
    int64_t taps = 0, early = 0, last_taps = 0, last_early = 0;
  };
  bool on_disk(const RowId& id) {
    return disk_ && id.kind != kReplayRow && disk_->holds(id.kind, rows_.row(id));
  }
  const RunInputs& in_;
  const Plan& plan_;
  RowTable& rows_;
  const Queue& queue_;
  Ranks& ranks_;
  double timeout_s_;
  std::optional<Local> local_;
  std::unique_ptr<FeatureDisk> disk_;
  std::unique_ptr<FeatureInbox> inbox_;
  std::map<int, Seen> targets_;
  bool stop_asked_ = false;
};

}  // namespace slip
