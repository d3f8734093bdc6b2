// Runtime device and precision meet the compile-time working type in one place.
#pragma once
#include "core/check.hpp"
#include "kernels/cuda_queue.hpp"

namespace slip {

// Calls f.template operator()<T>(queue): float on the CPU, float or Bf16 on a GPU, that of number `gpu`.
template <class F> auto with_queue(Device device, bool bf16, F&& f, int gpu = 0) {
  if (device == Device::cpu) return f.template operator()<float>(Queue{});
#if SLIP_HAVE_CUDA
  const CudaQueue cuda(gpu);
  if (bf16) return f.template operator()<Bf16>(cuda.queue());
  return f.template operator()<float>(cuda.queue());
#else
  (void)bf16, (void)gpu;
  fail("this build has no CUDA back end");
#endif
}

}  // namespace slip
