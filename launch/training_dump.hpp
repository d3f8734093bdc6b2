// `dump.dir` while training: a target rank's rows of epoch 0 also go to its feature shards, on the way to the
// drafters. Rows of later epochs, and those that a resumed run does not serve again, are left to `dump`.
#pragma once
#include <optional>
#include <unordered_map>

#include "comm/mailbox_wire.hpp"
#include "launch/feature_dump.hpp"
#include "launch/plan.hpp"

namespace slip {

// For one rank to call before any other makes its TrainingDump: puts the folder in order.
void prepare_training_dump(const RunOptions&, const RunInputs&);

class TrainingDump {
 public:
  // Collective only in that every rank reads the folder: nobody writes before all have been here.
  TrainingDump(const RunOptions&, const RunInputs&, const Plan&, int rank);
  const DumpPlan& plan() const { return plan_; }
  void start(Device);  // on a rank that runs the target: memory and the thread

  // Where the features of a row go, [tokens][taps][hidden]; waits for the disk. Null: the row is not dumped.
  Bf16* begin(const RowId&, const Peers&, double timeout_s);
  // Tap i of the row that was begun lies at `tap`, (tokens, hidden), where the queue's memory is.
  void keep(int i, const Bf16* tap, int64_t tokens, const Queue&);
  void end(const RowTokens&, const Queue&);
  double wait_s() const { return dump_ ? dump_->stats().wait_s : 0; }
  void finish(const Peers&, double timeout_s);
  void close_folder();  // after all ranks have finished, on the rank that lists; else nothing

 private:
  DumpPlan plan_;
  std::unordered_map<int64_t, const ShardPlan*> shard_of_row_;  // this writer's
  std::string folder_;
  int64_t queue_rows_, writer_, hidden_, taps_, all_documents_;
  std::unique_ptr<FeatureDump> dump_;
  int slot_ = -1;
  int64_t row_ = -1;
};

}  // namespace slip
