// A CUDA device to compute on: makes it current, and owns its stream and what products need there.
// Also there in a build without CUDA, where no device is ever found.
#pragma once
#include <memory>
#include <string>

#include "device/queue.hpp"

namespace slip {

int cuda_device_count();                   // 0 where there is no driver, no device or no CUDA in this build
std::string cuda_device_name(int device);  // "NVIDIA H200"
struct CudaCapability {
  int major = 0, minor = 0;  // sm_<major><minor>
};
CudaCapability cuda_capability(int device);

class CudaQueue {
 public:
  explicit CudaQueue(int device = 0);
  Queue queue() const;                        // valid as long as this is
  operator Queue() const { return queue(); }  // NOLINT: it is one

 private:
  struct State;
  struct Closer {
    void operator()(State*) const noexcept;
  };
  std::unique_ptr<State, Closer> state_;
};

}  // namespace slip
