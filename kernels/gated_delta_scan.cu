// The chunk loop of the gated delta rule, and the launch of both kernels: see gated_delta_hopper.hpp.
#include <cuda_runtime.h>

#include <algorithm>

#include "device/cuda.hpp"
#include "kernels/attention_hopper.cuh"
#include "kernels/device/wgmma.cuh"
#include "kernels/gated_delta_hopper.cuh"

namespace slip::hopper {
namespace {

// A stage: Q, K, then W, P and the gate factors, then the slice of U.
template <int kWarps> struct ScanTile {
  static constexpr int kStages = 3, kK = kDeltaTile, kW = 2 * kDeltaTile, kU = kW + kHeadBytes;
  static constexpr int kLoaded = kU + kWarps * 2048, kStage = (kLoaded + 1023) / 1024 * 1024;
  static constexpr int kBars = kStages * kStage, kBytes = kBars + 64 + 1024;
  static_assert(kBytes <= kMaxSharedBytes);
};

__device__ __forceinline__ float low_bf16(uint32_t x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high_bf16(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }

// A warp's O^T (16 columns of the state x 64 tokens) to the first `left` rows of the output, through the 2 KB
// where its U was: [token][16 columns], the two 16-byte halves swapped in every other group of four tokens.
__device__ __forceinline__ void store_out(const float (&o)[32], uint32_t buffer, Bf16* out, int64_t stride,
                                          int left) {
  const int l = threadIdx.x & 31, r8 = l & 7, m4 = l >> 3;
  __syncwarp();
#pragma unroll
  for (int n = 0; n < 8; n += 2) {
    const int token = 8 * (n + (m4 >> 1)) + r8;
    stmatrix_trans(buffer + token * 32 + (((m4 & 1) ^ ((token >> 2) & 1)) << 4),
                   pack_bf16(o[4 * n], o[4 * n + 1]), pack_bf16(o[4 * n + 2], o[4 * n + 3]),
                   pack_bf16(o[4 * n + 4], o[4 * n + 5]), pack_bf16(o[4 * n + 6], o[4 * n + 7]));
  }
  __syncwarp();
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int token = 16 * e + (l >> 1), half = l & 1;
    const uint4 x = load_shared_16(buffer + token * 32 + ((half ^ ((token >> 2) & 1)) << 4));
    if (token < left) *reinterpret_cast<uint4*>(out + token * stride + half * 8) = x;
  }
}

// kWarps computing warps have 16 columns of the state each, as rows of S^T in wgmma accumulators; the last
// warpgroup loads, three chunks ahead. All products are computed transposed, so that S^T and R^T, packed to
// bf16, are operands from registers. Inside a chunk the warps meet only at the barriers of the loads.
template <int kWarps>
__global__ void __launch_bounds__(kWarps * 32 + 128, 1)
    scan_kernel(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                const __grid_constant__ DeltaScanArgs a) {
#if SLIP_HOPPER_CODE
  using C = ScanTile<kWarps>;
  extern __shared__ uint8_t pool_memory[];
  const uint32_t pool = (shared_address(pool_memory) + 1023) & ~1023u;
  const auto full = [&](int s) { return pool + C::kBars + 8 * s; };
  const auto empty = [&](int s) { return pool + C::kBars + 8 * (C::kStages + s); };
  const int w = uniform(threadIdx.x >> 5), l = threadIdx.x & 31;
  constexpr int kSlices = 8 / kWarps;
  const int slice = blockIdx.x % kSlices, h = blockIdx.x / kSlices % a.value_heads;
  const DeltaDocument doc = a.documents[blockIdx.x / (kSlices * a.value_heads)];
  const int chunks = uniform((doc.tokens + kDeltaChunk - 1) / kDeltaChunk);
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) mbar_init(full(i), 1), mbar_init(empty(i), kWarps);
    mbar_init_fence();
  }
  __syncthreads();
  Ring<C::kStages> ring;
  if (w >= kWarps) {
    if constexpr (kWarps == 8) registers_down<40>();
    if (w > kWarps || l > 0) return;
    const uint8_t* from =
        a.scratch + (int64_t(doc.chunk - a.first_chunk) * a.value_heads + h) * kDeltaBlockBytes;
    for (int c = 0; c < chunks; ++c, from += a.value_heads * kDeltaBlockBytes, ring.next()) {
      const uint32_t stage = pool + ring.stage * C::kStage, bar = full(ring.stage);
      const int column = h / a.group * kDeltaDim, token = doc.first + c * kDeltaChunk;
      mbar_wait(empty(ring.stage), ring.parity ^ 1);
      mbar_expect(bar, C::kLoaded);
      bulk_load(stage + C::kW, from, kHeadBytes, bar);
      load_tile(stage, map_q, bar, column, token);
      bulk_load(stage + C::kU, from + kHeadBytes + slice * kWarps * 2048, kWarps * 2048, bar);
      load_tile(stage + C::kK, map_k, bar, column, token);
    }
    return;
  }
  if constexpr (kWarps == 8) registers_up<232>();
  float s[64] = {};  // S^T: 16 rows a warp, the key's columns along n
  // In memory S lies key row by key row: the accumulators of a lane are two of its columns.
  const auto each_element = [&](auto&& f) {
    const int64_t base =
        (int64_t(blockIdx.x / (kSlices * a.value_heads)) * a.value_heads + h) * kDeltaDim + 2 * (l & 3);
    const int column = (slice * kWarps + w) * 16 + (l >> 2);
#pragma unroll
    for (int n = 0; n < 16; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        f(s[4 * n + e], (base + 8 * n + (e & 1)) * kDeltaDim + column + 8 * (e >> 1));
    }
  };
  if (a.state != nullptr) each_element([&](float& x, int64_t at) { x = a.state[at]; });
  Bf16* out = a.out.row(doc.first) + h * kDeltaDim + (slice * kWarps + w) * 16;
#pragma unroll 1
  for (int c = 0; c < chunks; ++c, out += kDeltaChunk * a.out.stride, ring.next()) {
    const uint32_t q_tile = pool + ring.stage * C::kStage, w_tile = q_tile + C::kW, p_tile = w_tile + kWBytes,
                   gate = p_tile + kPBytes, u = q_tile + C::kU + w * 2048;
    uint32_t s_in[32], r_in[16], r_decayed[16];  // S^T, R^T and (e^(Gn - G) R)^T as operands
    float r[32], o[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) s_in[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
    mbar_wait(full(ring.stage), ring.parity);
    const uint64_t q_at = k_major(q_tile), k_at = mn_major(q_tile + C::kK, kDeltaHalf);
    const uint64_t w_at = descriptor(w_tile, 1024, 128, kNoSwizzle),
                   p_at = descriptor(p_tile, 1024, 128, kNoSwizzle);
    // Scaled before the products are issued: touching s while others run makes ptxas wait for all of them.
    const float last = load_shared_floats(gate + 248).y;
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] *= last;
    pin(s_in);
    pin(s);
    wgmma_fence();
#pragma unroll
    for (int t = 0; t < 8; ++t) WgmmaRS<64, 0>::call(r, s_in + 4 * t, w_at + step(2048 * t), t > 0);
    wgmma_commit();
#pragma unroll
    for (int t = 0; t < 8; ++t) WgmmaRS<64, 0>::call(o, s_in + 4 * t, q_at + k_step(t, kDeltaHalf), t > 0);
    wgmma_commit();
    wgmma_wait<1>();
    pin(r);
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const uint4 x = load_shared_16(u + t * 512 + l * 16);
      const uint32_t uu[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int i = 8 * t + 4 * e;
        const float2 d = load_shared_floats(gate + 256 + (2 * t + e) * 32 + (l & 3) * 8);
        const float r0 = low_bf16(uu[2 * e]) - r[i], r1 = high_bf16(uu[2 * e]) - r[i + 1];
        const float r2 = low_bf16(uu[2 * e + 1]) - r[i + 2], r3 = high_bf16(uu[2 * e + 1]) - r[i + 3];
        r_in[4 * t + 2 * e] = pack_bf16(r0, r1), r_in[4 * t + 2 * e + 1] = pack_bf16(r2, r3);
        r_decayed[4 * t + 2 * e] = pack_bf16(r0 * d.x, r1 * d.y);
        r_decayed[4 * t + 2 * e + 1] = pack_bf16(r2 * d.x, r3 * d.y);
      }
    }
    pin(r_decayed);
    pin(s);
    wgmma_fence();
#pragma unroll
    for (int t = 0; t < 4; ++t) WgmmaRS<128, 1>::call(s, r_decayed + 4 * t, k_at + step(2048 * t), 1);
    wgmma_commit();
    wgmma_wait<1>();
    pin(o);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 g = load_shared_floats(gate + n * 32 + (l & 3) * 8);
      o[4 * n] *= g.x * a.scale, o[4 * n + 1] *= g.y * a.scale;
      o[4 * n + 2] *= g.x * a.scale, o[4 * n + 3] *= g.y * a.scale;
    }
    pin(o);
    pin(r_in);
    wgmma_fence();
#pragma unroll
    for (int t = 0; t < 4; ++t) WgmmaRS<64, 0>::call(o, r_in + 4 * t, p_at + step(2048 * t), 1);
    wgmma_commit();
    wgmma_wait<0>();
    pin(s);
    pin(o);
    store_out(o, u, out, a.out.stride, doc.tokens - c * kDeltaChunk);
    fence_async_shared();  // the output passed through the stage: visible before it is loaded again
    __syncwarp();
    if (l == 0) mbar_arrive(empty(ring.stage));
  }
  if (a.state_out != nullptr) each_element([&](float x, int64_t at) { a.state_out[at] = x; });
#endif
}

template <int kWarps>
void launch(const TensorMap& q, const TensorMap& k, const DeltaScanArgs& a, int documents,
            CudaStream stream) {
  using C = ScanTile<kWarps>;
  check(cudaFuncSetAttribute(scan_kernel<kWarps>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kBytes));
  const unsigned blocks = unsigned(documents * a.value_heads * (8 / kWarps));
  scan_kernel<kWarps><<<blocks, kWarps * 32 + 128, C::kBytes, stream>>>(q, k, a);
  check(cudaGetLastError());
}

}  // namespace

void launch_delta_scan(const TensorMap& q, const TensorMap& k, const DeltaScanArgs& a, int documents,
                       int slice, CudaStream stream) {
  slice == 64 ? launch<4>(q, k, a, documents, stream) : launch<8>(q, k, a, documents, stream);
}

}  // namespace slip::hopper

namespace slip {

bool hopper_supports(const GatedDeltaFwd<Bf16>& a) {
  using hopper::fits_map;
  return delta_chunks_fit(a.shape) && hopper_available() && fits_map(a.q) && fits_map(a.k) && fits_map(a.v) &&
         fits_map(a.out) && a.q.rows < INT_MAX / 2 && a.scratch != nullptr &&
         reinterpret_cast<uintptr_t>(a.scratch) % 16 == 0;
}

void gated_delta_fwd_hopper(const GatedDeltaFwd<Bf16>& a, CudaStream stream) {
  using namespace hopper;
  require_delta_shapes(a);
  if (a.row.document_count == 0) return;
  const DeltaShape& s = a.shape;
  const TensorMap q = delta_map(a.q), k = delta_map(a.k), v = delta_map(a.v);
  const float scale = 1 / sqrtf(float(s.key_dim));
  const int group = s.value_heads / s.key_heads;
  const int64_t room = a.scratch_bytes / (s.value_heads * kDeltaBlockBytes);
  const auto chunks_of = [&](int d) {
    return (a.row.documents_host[d].tokens + kDeltaChunk - 1) / kDeltaChunk;
  };
  // As many documents at a time as scratch has room for: in ordinary rows all of them.
  for (int first = 0; first < a.row.document_count;) {
    int end = first, chunks = 0;
    while (end < a.row.document_count && chunks + chunks_of(end) <= room) chunks += chunks_of(end++);
    require(end > first, "gated_delta_fwd: scratch is too small for a document");
    const int chunk = a.row.documents_host[first].chunk;
    auto* scratch = static_cast<uint8_t*>(a.scratch);
    launch_delta_prepare(
        q, k, v, {a.row.chunks + chunk, a.a, a.b, a.a_log, a.dt_bias, scratch, s.key_heads, group, scale},
        chunks, stream);
    const int64_t states = first * delta_state_size(s);
    launch_delta_scan(q, k,
                      {a.row.documents + first, scratch, chunk, a.out, s.value_heads, group, scale,
                       a.state != nullptr ? a.state + states : nullptr,
                       a.state_out != nullptr ? a.state_out + states : nullptr},
                      end - first,
                      delta_slice(s.value_heads, chunks, chunks_of(first), device_limits().multiprocessors),
                      stream);
    first = end;
  }
}

}  // namespace slip
