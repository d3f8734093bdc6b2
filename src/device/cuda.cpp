#include "device/cuda.hpp"

#include "core/log.hpp"

namespace slip {

void check(cudaError_t rc, Where at) {
  if (rc == cudaSuccess) return;
  cudaGetLastError();  // clear it, or the next check blames the wrong call
  fail(std::string(cudaGetErrorName(rc)) + ": " + cudaGetErrorString(rc), at);
}

void warn_unless_ok(cudaError_t rc) noexcept {
  if (rc == cudaSuccess || rc == cudaErrorCudartUnloading) return;
  log_warn(std::string("a CUDA handle would not close: ") + cudaGetErrorName(rc));
}

Stream make_stream() {
  cudaStream_t s = nullptr;
  check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  return Stream(s);
}

Stream make_urgent_stream() {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t s = nullptr;
  check(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, greatest));
  return Stream(s);
}

Event make_timed_event() {
  cudaEvent_t e = nullptr;
  check(cudaEventCreate(&e));
  return Event(e);
}

double seconds_between(const Event& first, const Event& second) {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, first.get(), second.get()));
  return static_cast<double>(ms) * 1e-3;
}

Event make_event() {
  cudaEvent_t e = nullptr;
  check(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  return Event(e);
}

}  // namespace slip
