// Programmatic dependent launch (sm_90 on): a kernel queued with launch_early may start while the kernel in
// front of it still runs. What it does before await_previous() is then hidden; after it, everything queued
// before is complete and visible. A kernel so launched calls await_previous() in every thread before it
// touches what an earlier kernel may read or write, and allow_next() where the next one may start: that
// costs nothing but the resources which the waiting blocks hold.
#pragma once
#include <cuda_runtime.h>

#include "device/cuda.hpp"
#include "device/queue.hpp"

namespace slip {

__device__ __forceinline__ void await_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void allow_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Asks for a line of L2 before await_previous(), whoever may still write it: L2 is where all see the same.
__device__ __forceinline__ void prefetch_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// Whether the current device has it and these kernels were compiled to wait (few_rows.cu).
bool can_launch_early();

template <class... P, class... A>
void launch_early(void (*kernel)(P...), dim3 grid, dim3 block, int64_t shared, CudaStream stream,
                  const A&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = size_t(shared);
  config.stream = stream;
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = can_launch_early() ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, P(arguments)...));
}

}  // namespace slip
