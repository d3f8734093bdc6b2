// Rows of features that come from shards: threads read ahead of the drafter into a few slots, on a GPU by way
// of pinned memory and a stream of their own, so that a row is there when the row before it has been trained.
//  * A slot belongs to the threads from `try_request` until the row is complete, to the caller from `receive`
//    to `release`.
//  * Rows are read in the order in which they were requested; several threads work on several rows.
//  * What is wrong with a shard is thrown by `receive` of the row that needs it.
#pragma once
#include <memory>

#include "comm/mailbox_wire.hpp"
#include "comm/wait.hpp"
#include "device/queue.hpp"
#include "io/feature_files.hpp"
#include "train/rows.hpp"

namespace slip {

class FeatureDisk {
 public:
  struct Setup {
    int64_t slots = 2, threads = 2, max_tokens = 0;
    Bf16* memory = nullptr;  // slots * max_tokens tokens, where `device` computes; outlives this
    Device device = Device::cpu;
  };
  // Files of training rows and of held-out rows, either may be null; they outlive it.
  FeatureDisk(const FeatureFiles* train, const FeatureFiles* eval, const Setup&);
  ~FeatureDisk();
  FeatureDisk(const FeatureDisk&) = delete;
  FeatureDisk& operator=(const FeatureDisk&) = delete;

  bool holds(int32_t kind, const Row&) const;  // all documents of the row
  bool requested(const RowId&) const;
  bool try_request(const RowId&, RowTokens);  // false: no free slot
  struct Ready {
    int slot = -1;
    const Bf16* features = nullptr;  // [taps][tokens][hidden]
    int64_t tokens = 0;
    double waited_s = 0;
  };
  Ready receive(const RowId&, const Peers&, double timeout_s);  // it must have been requested
  void release(int slot);                                       // nothing queued reads it any more

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slip
