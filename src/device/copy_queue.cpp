#include "device/copy_queue.hpp"

#if SLIP_HAVE_CUDA
#include "device/cuda.hpp"
#endif

namespace slip {
#if SLIP_HAVE_CUDA

struct CopyQueue::State {
  int gpu = 0;
  Stream stream = make_stream();
};

CopyQueue::CopyQueue(Device device) {
  if (device == Device::cpu) return;
  state_.reset(new State);
  check(cudaGetDevice(&state_->gpu));
}
void CopyQueue::enter() const {
  if (state_) check(cudaSetDevice(state_->gpu));
}
Queue CopyQueue::queue() const {
  return state_ ? Queue{.device = Device::cuda, .stream = state_->stream.get()} : Queue();
}

#else

struct CopyQueue::State {};
CopyQueue::CopyQueue(Device device) { require(device == Device::cpu, "CopyQueue: this build has no CUDA"); }
void CopyQueue::enter() const {}
Queue CopyQueue::queue() const { return {}; }

#endif

void CopyQueue::Closer::operator()(State* s) const noexcept { delete s; }

}  // namespace slip
