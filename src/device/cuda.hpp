// CUDA calls checked, and owners of streams and events. Only for builds with CUDA.
#pragma once
#include <cuda_runtime.h>

#include <memory>

#include "core/check.hpp"

namespace slip {

void check(cudaError_t rc, Where at = Where::current());
void warn_unless_ok(cudaError_t rc) noexcept;  // for destructors: they log, they never throw

template <auto destroy> struct Closer {
  template <class H> void operator()(H h) const noexcept { warn_unless_ok(destroy(h)); }
};
using Stream = std::unique_ptr<CUstream_st, Closer<cudaStreamDestroy>>;
using Event = std::unique_ptr<CUevent_st, Closer<cudaEventDestroy>>;

Stream make_stream();
Stream make_urgent_stream();  // its blocks get free multiprocessors before those of other streams
Event make_event();           // no timing
Event make_timed_event();
double seconds_between(const Event& first, const Event& second);  // timed ones that have passed

}  // namespace slip
