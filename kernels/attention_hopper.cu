// Which calls the Hopper attention kernels take.
#include "kernels/attention_hopper.hpp"

#include <atomic>

#include "kernels/attention_hopper.cuh"
#include "kernels/device/tma.cuh"

namespace slip {
namespace {

// Never launched. Its static shared memory tells whether the code of the current device is the sm_90a one.
constexpr int kMark = 1024;
__global__ void mark_kernel(int* out) {
#if SLIP_HOPPER_CODE
  __shared__ int mark[kMark / sizeof(int)];
  mark[threadIdx.x] = out[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = mark[threadIdx.x ^ 1];
#endif
}

bool probe(int device) {
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  if (major != 9 || minor != 0) return false;
  cudaFuncAttributes f;
  if (cudaFuncGetAttributes(&f, mark_kernel) != cudaSuccess) {
    cudaGetLastError();  // no code for this device at all
    return false;
  }
  return f.sharedSizeBytes >= kMark;
}

bool pairs_of_floats(const View2<float>& v) {
  return reinterpret_cast<uintptr_t>(v.data) % 8 == 0 && v.stride % 2 == 0;
}

bool tensors_fit(const AttentionShape& s, const View2<const Bf16>& q, const View2<const Bf16>& k_context,
                 const View2<const Bf16>& v_context, const View2<const Bf16>& k_block,
                 const View2<const Bf16>& v_block) {
  using hopper::fits_map;
  return q.rows % s.block == 0 && q.rows <= INT_MAX / 2 && k_context.rows <= INT_MAX / 2 && fits_map(q) &&
         fits_map(k_context) && fits_map(v_context) && fits_map(k_block) && fits_map(v_block);
}

}  // namespace

bool hopper_available() {
  constexpr int kDevices = 64;
  static std::atomic<signed char> known[kDevices];  // 0: not asked yet, 1: no, 2: yes
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  if (device >= kDevices) return probe(device);
  if (known[device] == 0) known[device] = probe(device) ? 2 : 1;
  return known[device] == 2;
}

bool hopper_supports_block(const AttentionShape& s) {
  return hopper_available() && hopper::unit_shape(s).tokens > 0;
}

bool hopper_supports(const BlockAttentionFwd<Bf16>& a) {
  return hopper_supports_block(a.shape) &&
         tensors_fit(a.shape, a.q, a.k_context, a.v_context, a.k_block, a.v_block) && hopper::fits_map(a.out);
}

bool hopper_supports(const BlockAttentionBwd<Bf16>& a) {
  using hopper::fits_map;
  return hopper_supports_block(a.shape) &&
         tensors_fit(a.shape, a.q, a.k_context, a.v_context, a.k_block, a.v_block) && fits_map(a.out) &&
         fits_map(a.dout) && fits_map(a.dq) && fits_map(a.dk_block) && fits_map(a.dv_block) &&
         pairs_of_floats(a.dk_context) && pairs_of_floats(a.dv_context) &&
         reinterpret_cast<uintptr_t>(a.scratch) % 16 == 0;
}

bool hopper_supports(const CausalAttentionFwd<Bf16>& a) {
  using hopper::fits_map;
  const AttentionShape& s = a.shape;
  return hopper_available() && (s.head_dim == 64 || s.head_dim == 128 || s.head_dim == 256) &&
         s.kv_heads > 0 && s.heads % s.kv_heads == 0 && a.q.rows <= INT_MAX / 2 && fits_map(a.q) &&
         fits_map(a.k) && fits_map(a.v) && fits_map(a.out);
}

namespace hopper {
DeviceLimits device_limits() {
  int device = 0;
  DeviceLimits limits;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&limits.multiprocessors, cudaDevAttrMultiProcessorCount, device));
  return limits;
}
}  // namespace hopper

}  // namespace slip
