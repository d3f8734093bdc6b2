// sm_90a in inline PTX: mbarriers, named barriers, register budgets, stmatrix. Included by .cu files only;
// what uses it compiles its kernel bodies under SLIP_HOPPER_CODE, so that other architectures get empty
// kernels.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SLIP_HOPPER_CODE 1
#else
#define SLIP_HOPPER_CODE 0
#ifdef __CUDA_ARCH__
#pragma nv_diag_suppress 177  // kernel bodies are empty: what they would use is unused
#endif
#endif

namespace slip::hopper {

constexpr int kMaxSharedBytes = 232448;  // of one block; 1024 of them align the pool

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// --- mbarrier: `full` counts one arrival and bytes, `empty` counts the warps that are done with a stage --
__device__ __forceinline__ void mbar_init(uint32_t bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count));
}
__device__ __forceinline__ void mbar_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbar_expect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "W:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra D;\nbra W;\nD:\n}" ::"r"(bar),
      "r"(parity)
      : "memory");
}

// --- a position in a ring of n stages: which stage, and the parity its barriers have in this lap ---------
template <int n> struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == n) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// --- synchronisation of a part of the block, and of the two proxies --------------------------------------
__device__ __forceinline__ void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Counts as having come to the barrier, without waiting there.
__device__ __forceinline__ void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// What threads wrote to shared memory becomes visible to wgmma and TMA; every writing thread, then a barrier.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int n> __device__ __forceinline__ void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n> __device__ __forceinline__ void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

// --- small arithmetic ------------------------------------------------------------------------------------
// One MUFU instruction; exp2f without fast math adds a compare and two multiplies to keep denormals.
__device__ __forceinline__ float exp2_ftz(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
// The same value in every lane, and known to be: what decides a branch around wgmma must be uniform to the
// compiler.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(~0u, x, 0); }

// --- stmatrix: four 8x8 blocks of bf16 -------------------------------------------------------------------
__device__ __forceinline__ void stmatrix(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void stmatrix_trans(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

// A warpgroup's accumulator (64 rows x 2 N columns) to a tile of 128-byte swizzled chunks of 64 columns, each
// row times the factor of its half. `chunk` is the distance of the chunks in bytes.
template <int n>
__device__ __forceinline__ void store_tile(uint32_t tile, int chunk, const float (&o)[n], float low,
                                           float high) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int r = 16 * warp + (lane & 15);
#pragma unroll
  for (int j = 0; j < n / 4; j += 2) {  // two groups of eight columns
    uint32_t v[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int x = 4 * (j + (e >> 1)) + 2 * (e & 1);
      const float f = e & 1 ? high : low;
      v[e] = pack_bf16(o[x] * f, o[x + 1] * f);
    }
    const int unit = (j + (lane >> 4)) & 7;
    stmatrix(tile + (j / 8) * chunk + r * 128 + ((unit ^ (r & 7)) << 4), v[0], v[1], v[2], v[3]);
  }
}

}  // namespace slip::hopper
