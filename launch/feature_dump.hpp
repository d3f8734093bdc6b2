// From a target to feature shards: a ring of host memory (pinned where a GPU copies into it), and the one
// thread of the process that writes HDF5. Rules:
//  * A buffer of the ring belongs to the caller from `acquire` to `submit`, then to the thread, which waits
//    until the queue has passed that point, writes, and frees it. No free buffer: the disk is slower, and the
//    caller waits (`stats().wait_s`).
//  * Rows come shard after shard; the first row of another shard ends the one before, also when rows of it
//    never came.
//  * With `lists` this process keeps the manifest: it lists its own shards at once, and those of the others
//    when it sees that they are there (every second). All others only write.
//  * An error of the thread is thrown by the caller's next call.
#pragma once
#include <memory>
#include <string>

#include "comm/wait.hpp"
#include "device/queue.hpp"
#include "launch/dump_plan.hpp"

namespace slip {

struct DumpStats {
  int64_t rows = 0, shards = 0, bytes = 0;  // written; bytes of features
  double wait_s = 0;                        // of the caller, for a free buffer
  double write_s = 0;                       // of the thread, checksums included
};

class FeatureDump {
 public:
  struct Setup {
    std::string folder;
    int64_t slots = 3, row_values = 0;
    Device device = Device::cpu;
    bool lists = true;
  };
  FeatureDump(const Setup&, const DumpPlan&);  // the plan outlives it
  // Without `finish` (an error): the open shard is left unfinished.
  ~FeatureDump();
  FeatureDump(const FeatureDump&) = delete;
  FeatureDump& operator=(const FeatureDump&) = delete;

  int acquire(const Peers&, double timeout_s);
  Bf16* memory(int slot);  // [tokens][taps][hidden]
  // `shard`: of the plan. The features are there when `queue` has passed this point.
  void submit(int slot, RowTokens, const ShardPlan& shard, const Queue& queue);
  // Writes what was submitted, ends the open shard, lists it; then the thread rests.
  void finish(const Peers&, double timeout_s);
  // After all processes have finished: lists what is still unlisted. For the process that lists.
  void list_rest();
  DumpStats stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slip
