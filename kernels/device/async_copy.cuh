// Copies of 16 bytes from global to shared memory that a thread starts and waits for by groups (cp.async,
// sm_80 on).
#pragma once
#include <cstdint>

namespace slip {

// `to` is a shared-memory address, both ends are aligned to 16 bytes; not there: zeros, and `from` is not
// read.
__device__ __forceinline__ void copy_16(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
// For copy_16_once: what is read once goes out of L2 first, so that what is read again stays there.
__device__ __forceinline__ uint64_t read_once() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void copy_16_once(uint32_t to, const void* from, bool there, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
               "r"(there ? 16 : 0), "l"(policy)
               : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int n> __device__ __forceinline__ void wait_for() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

}  // namespace slip
