// TMA: boxes of a tensor between global and shared memory by one thread, and the maps that describe the
// tensors. Maps are encoded on the host at every launch (about a microsecond each) and travel as kernel
// arguments.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "core/bf16.hpp"
#include "core/check.hpp"
#include "device/cuda.hpp"
#include "device/view.hpp"

namespace slip::hopper {

using TensorMap = CUtensorMap;

// --- device ----------------------------------------------------------------------------------------------
__device__ __forceinline__ void tma_load(uint32_t to, const TensorMap& map, uint32_t bar, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(bar), "r"(c0), "r"(c1)
      : "memory");
}
__device__ __forceinline__ void tma_load(uint32_t to, const TensorMap& map, uint32_t bar, int c0, int c1,
                                         int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(bar), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
// `bytes` consecutive bytes; both addresses and the size are multiples of 16.
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(bar)
      : "memory");
}
__device__ __forceinline__ void tma_store(const TensorMap& map, uint32_t from, int c0, int c1, int c2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
               "r"(from), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}
// `bytes` consecutive bytes of shared memory, written to global memory, or added there as floats.
__device__ __forceinline__ void bulk_store(float* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_add(float* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// The sources of this thread's stores have been read: their shared memory may be written again.
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ __forceinline__ void prefetch_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}
template <class... Map> __device__ __forceinline__ void prefetch_maps(const Map&... map) {
  (..., [](const TensorMap& m) { asm volatile("prefetch.tensormap [%0];" ::"l"(&m) : "memory"); }(map));
}

// --- host ------------------------------------------------------------------------------------------------
// Outside the tensor a load gives zeros and a store writes nothing.
inline TensorMap encode_map(CUtensorMapDataType type, int rank, const void* base, const uint64_t* size,
                            const uint64_t* stride_bytes, const uint32_t* box, CUtensorMapSwizzle swizzle) {
  using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                              const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  static const Encode encode = [] {  // from the driver, so that nothing links with libcuda
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    check(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess || !entry) fail("the CUDA driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(entry);
  }();
  TensorMap map;
  const cuuint32_t ones[5] = {1, 1, 1, 1, 1};
  cuuint64_t sizes[5], strides[5];
  for (int i = 0; i < rank; ++i) sizes[i] = size[i];
  for (int i = 0; i + 1 < rank; ++i) strides[i] = stride_bytes[i];
  const CUresult rc = encode(&map, type, rank, const_cast<void*>(base), sizes, strides, box, ones,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (rc != CUDA_SUCCESS) fail("cuTensorMapEncodeTiled: error " + std::to_string(rc));
  return map;
}

// (tokens, heads * head_dim) as boxes of 64 columns x tokens x heads: in shared memory row = head * tokens +
// token. Neither the token stride nor the order of the outer dimensions is bound to the memory order.
inline TensorMap head_map(const View2<const Bf16>& v, int head_dim, int box_tokens, int box_heads) {
  const uint64_t size[3] = {uint64_t(head_dim), uint64_t(v.rows), uint64_t(v.cols / head_dim)};
  const uint64_t stride[2] = {uint64_t(v.stride) * 2, uint64_t(head_dim) * 2};
  const uint32_t box[3] = {64, uint32_t(box_tokens), uint32_t(box_heads)};
  return encode_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, v.data, size, stride, box,
                    CU_TENSOR_MAP_SWIZZLE_128B);
}
// (heads, tokens) of floats, rows `stride` apart.
inline TensorMap row_map(const float* data, int64_t heads, int64_t tokens, int64_t stride, int box_tokens,
                         int box_heads) {
  const uint64_t size[2] = {uint64_t(tokens), uint64_t(heads)}, strides[1] = {uint64_t(stride) * 4};
  const uint32_t box[2] = {uint32_t(box_tokens), uint32_t(box_heads)};
  return encode_map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, data, size, strides, box, CU_TENSOR_MAP_SWIZZLE_NONE);
}
// What a map asks of a view.
template <class T> bool fits_map(const View2<T>& v) {
  if (v.rows == 0) return true;
  return reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && v.stride * int64_t(sizeof(T)) % 16 == 0 &&
         v.stride >= v.cols;
}

}  // namespace slip::hopper
