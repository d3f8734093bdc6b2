// A queue for tests: the CPU, or a CUDA stream of its own (not the default one) with what the products need.
#pragma once
#include <optional>

#include "kernels/cuda_queue.hpp"

namespace slip::testing {

class TestQueue {
 public:
  explicit TestQueue(Device device) {
    if (device == Device::cpu) return;
    owner_.emplace();
    queue_ = owner_->queue();
  }
  const Queue& get() const { return queue_; }
  operator const Queue&() const { return queue_; }  // NOLINT: it is one

 private:
  std::optional<CudaQueue> owner_;
  Queue queue_;
};

inline TestQueue make_queue(Device device) { return TestQueue(device); }

}  // namespace slip::testing
