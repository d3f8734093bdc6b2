// wgmma: warpgroup products of bf16 tiles in shared memory (A also from registers), accumulated in fp32
// registers.
//
// Accumulator register i of m64nN, thread t of the warpgroup (warp w, lane l):
//   row = 16 w + l / 4 + 8 ((i >> 1) & 1), column = 8 (i >> 2) + 2 (l & 3) + (i & 1)
// Packed in pairs it is the A operand of the next product as it stands: k-step s takes pairs 4 s .. 4 s + 3.
//
// Tiles are chunks of R rows by 128 bytes (64 columns), as one TMA box writes them, 128-byte swizzled. A
// chunk reads as K-major (rows = M or N, columns = K): stride 1024, a k-step is +32 bytes inside a chunk; or
// as MN-major (rows = K, columns = M or N): leading = distance of the next chunk, stride 1024, a k-step is 16
// rows = +2048 bytes.
#pragma once
#include <cstdint>

namespace slip::hopper {

#include "kernels/device/wgmma.inc"

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// At most the n newest groups are still running.
template <int n> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}

// Keeps the compiler from moving reads or writes of these registers across this point.
template <int n> __device__ __forceinline__ void pin(float (&r)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(r[i])::"memory");
}
template <int n> __device__ __forceinline__ void pin(uint32_t (&r)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+r"(r[i])::"memory");
}

// The same for registers that the product overwrites: what they held is not kept alive until here.
template <int n> __device__ __forceinline__ void forget(float (&r)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "=f"(r[i])::"memory");
}

enum Swizzle : uint32_t { kNoSwizzle = 0, kSwizzle128 = 1 };
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t leading, uint32_t stride,
                                               Swizzle swizzle) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(swizzle) << 62;
}
// Byte offsets added to a descriptor are in units of 16.
__device__ __forceinline__ constexpr uint64_t step(int bytes) { return static_cast<uint64_t>(bytes >> 4); }
// K-major, swizzled, chunks `chunk` bytes apart: where k-step t (16 columns) begins.
__device__ __forceinline__ constexpr uint64_t k_step(int t, int chunk) {
  return step(t / 4 * chunk + t % 4 * 32);
}
__device__ __forceinline__ uint64_t k_major(uint32_t address) {
  return descriptor(address, 16, 1024, kSwizzle128);
}
__device__ __forceinline__ uint64_t mn_major(uint32_t address, int chunk) {
  return descriptor(address, chunk, 1024, kSwizzle128);
}

}  // namespace slip::hopper
