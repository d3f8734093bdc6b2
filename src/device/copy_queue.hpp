// A queue of its own for copies beside what computes: a stream of the GPU that was current when it was made,
// or the CPU. Made by the thread that owns the GPU; another thread that uses it calls `enter` first.
#pragma once
#include <memory>

#include "device/queue.hpp"

namespace slip {

class CopyQueue {
 public:
  explicit CopyQueue(Device);
  void enter() const;   // makes its GPU that of the calling thread
  Queue queue() const;  // valid as long as this is; no products

 private:
  struct State;
  struct Closer {
    void operator()(State*) const noexcept;
  };
  std::unique_ptr<State, Closer> state_;  // null on the CPU
};

}  // namespace slip
