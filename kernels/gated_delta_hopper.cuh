// What `prepare` leaves `scan` for one (chunk, value head): a block of kDeltaBlockBytes in scratch.
//   W [token][key column] and P [token][token] in bf16 as K-major wgmma tiles without swizzle: columns of 8
//   elements, each 64 rows of 16 bytes, 1024 bytes apart, so that an 8 x 8 piece of an mma accumulator is 128
//   contiguous bytes;
//   gate factors e^G and e^(Gn - G) in fp32, 64 each; entry 63 of the first is e^Gn;
//   U^T as accumulator fragments of the scan: 2 KB for 16 columns of the state, 16 bytes a lane.
#pragma once
#include "kernels/device/hopper.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/tma.cuh"
#include "kernels/gated_delta_hopper.hpp"

namespace slip::hopper {

constexpr int kDeltaDim = 128, kDeltaMaxGroup = 4;
constexpr int kWBytes = 16384, kPBytes = 8192, kGateBytes = 512, kUBytes = 16384;
constexpr int kHeadBytes = kWBytes + kPBytes + kGateBytes;  // all but U
static_assert(kHeadBytes + kUBytes == kDeltaBlockBytes);

// A tile of 64 tokens x 128 columns, as two swizzled halves of 64 columns.
constexpr int kDeltaTile = 16384, kDeltaHalf = 8192;
__device__ __forceinline__ void load_tile(uint32_t to, const TensorMap& map, uint32_t bar, int column,
                                          int token) {
  tma_load(to, map, bar, column, token);
  tma_load(to + kDeltaHalf, map, bar, column + 64, token);
}
// Byte offset of 16-byte unit u (0..15) of a row of such a tile.
__device__ __forceinline__ uint32_t tile_offset(int row, int u) {
  return (u >> 3) * kDeltaHalf + row * 128 + (((u & 7) ^ (row & 7)) << 4);
}

inline TensorMap delta_map(const View2<const Bf16>& v) {
  const uint64_t size[2] = {uint64_t(v.cols), uint64_t(v.rows)}, stride[1] = {uint64_t(v.stride) * 2};
  const uint32_t box[2] = {64, uint32_t(kDeltaChunk)};
  return encode_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, v.data, size, stride, box,
                    CU_TENSOR_MAP_SWIZZLE_128B);
}

struct DeltaPrepareArgs {
  const DeltaChunk* chunks;
  View2<const Bf16> a, b;
  const float *a_log, *dt_bias;
  uint8_t* scratch;
  int key_heads, group;  // group: value heads a key head
  float scale;
};
void launch_delta_prepare(const TensorMap& q, const TensorMap& k, const TensorMap& v, const DeltaPrepareArgs&,
                          int chunks, CudaStream);

struct DeltaScanArgs {
  const DeltaDocument* documents;
  const uint8_t* scratch;
  int first_chunk;  // the one whose blocks scratch starts with
  View2<Bf16> out;
  int value_heads, group;
  float scale;
  const float* state;  // of these documents, before and after; null: zero, not wanted
  float* state_out;
};
void launch_delta_scan(const TensorMap& q, const TensorMap& k, const DeltaScanArgs&, int documents, int slice,
                       CudaStream);

}  // namespace slip::hopper
