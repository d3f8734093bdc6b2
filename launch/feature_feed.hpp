// Where a drafter's features come from: the mailbox, or with one rank a target of its own that runs when
// asked.
#pragma once
#include <optional>

#include "comm/mailbox.hpp"
#include "launch/rank.hpp"
#include "launch/row_table.hpp"
#include "model/target.hpp"

namespace slip {

struct Features {
  const Bf16* data = nullptr;  // [taps][tokens][hidden], where the queue's memory is
  int64_t tokens = 0;
  double waited_s = 0;
  int slot = -1;
};

template <class T> class FeatureFeed {
 public:
  FeatureFeed(const RunOptions&, const RunInputs&, const Plan&, Ranks&, RowTable&, const TargetWeights<T>&,
              Arena&, const Queue&);

  bool can_request() const { return inbox_ && inbox_->free_slots() > 0; }
  void request(const RowId&);  // asks the target rank that serves the row to begin; `can_request` must hold
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

 private:
  struct Local {  // the target of a single rank
    Target<T> target;
    PackedRow row;
    Bf16* slot;
  };
  struct Seen {
    double busy = 0, wait = 0, last_busy = 0, last_wait = 0;
  };
  const RunInputs& in_;
  const Plan& plan_;
  RowTable& rows_;
  const Queue& queue_;
  std::optional<Local> local_;
  Bf16* device_slot_ = nullptr;
  std::unique_ptr<FeatureInbox> inbox_;
  std::map<int, Seen> targets_;
  bool stop_asked_ = false;
};

}  // namespace slip
