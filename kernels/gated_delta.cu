// Which kernels: chunks on tensor cores where the device and the shape have them, else token by token.
#include <cuda_runtime.h>

#include "device/cuda.hpp"
#include "kernels/device/reduce.cuh"
#include "kernels/gated_delta.hpp"
#include "kernels/gated_delta_hopper.hpp"

namespace slip {
namespace {

// A warp has one column of the state of a (document, value head): kRows of its key_dim entries a lane, in
// registers from the first token to the last. Every lane computes the gates; the next token's q and k are
// loaded before this one's sums are waited for.
constexpr int kWarps = 8;

template <class T, int kRows>
__global__ void __launch_bounds__(32 * kWarps)
    recurrence_kernel(const __grid_constant__ GatedDeltaFwd<T> a, float scale) {
  const DeltaShape& s = a.shape;
  const DeltaDocument doc =
      a.row.documents != nullptr ? a.row.documents[blockIdx.x] : DeltaDocument{0, int(a.q.rows), 0, 0};
  const int h = blockIdx.y, column = blockIdx.z * kWarps + warp_id();
  if (column >= s.value_dim) return;  // whole warps
  const int key_column = h / (s.value_heads / s.key_heads) * s.key_dim;
  const float rate = -expf(a.a_log[h]), bias = a.dt_bias[h];
  const int64_t at = (int64_t(blockIdx.x) * s.value_heads + h) * s.key_dim * s.value_dim + column;
  float state[kRows] = {}, q[kRows] = {}, k[kRows] = {};
  if (a.state != nullptr) {
#pragma unroll
    for (int e = 0; e < kRows; ++e) {
      const int i = lane_id() + 32 * e;
      if (i < s.key_dim) state[e] = a.state[at + int64_t(i) * s.value_dim];
    }
  }
  const auto load = [&](int t) {
#pragma unroll
    for (int e = 0; e < kRows; ++e) {
      const int i = lane_id() + 32 * e;
      if (i >= s.key_dim) continue;
      q[e] = to_float(a.q.at(t, key_column + i));
      k[e] = to_float(a.k.at(t, key_column + i));
    }
  };
  load(doc.first);
#pragma unroll 1
  for (int t = doc.first; t < doc.first + doc.tokens; ++t) {
    const float z = to_float(a.a.at(t, h)) + bias;
    const float decay = expf(rate * (z > 20 ? z : log1pf(expf(z))));
    const float beta = 1 / (1 + expf(-to_float(a.b.at(t, h))));
    const float v = to_float(a.v.at(t, h * s.value_dim + column));
    float read = 0;
#pragma unroll
    for (int e = 0; e < kRows; ++e) {
      state[e] *= decay;
      read = fmaf(state[e], k[e], read);
    }
    const float write = beta * (v - warp_sum(read));
    float out = 0;
#pragma unroll
    for (int e = 0; e < kRows; ++e) {
      state[e] = fmaf(k[e], write, state[e]);
      out = fmaf(state[e], q[e], out);
    }
    if (t + 1 < doc.first + doc.tokens) load(t + 1);
    out = warp_sum(out) * scale;
    if (lane_id() == 0 && !a.out.empty()) a.out.at(t, h * s.value_dim + column) = from_float<T>(out);
  }
  if (a.state_out == nullptr) return;
#pragma unroll
  for (int e = 0; e < kRows; ++e) {
    const int i = lane_id() + 32 * e;
    if (i < s.key_dim) a.state_out[at + int64_t(i) * s.value_dim] = state[e];
  }
}

// `documents`: of the grid; a.row.documents, or null where all rows are one.
template <class T> void launch_recurrence(const GatedDeltaFwd<T>& a, int documents, CudaStream stream) {
  require_delta_shapes(a);
  const DeltaShape& s = a.shape;
  require(s.key_dim >= 1 && s.key_dim <= 256 && s.value_heads < 65536,
          "gated_delta_fwd: keys of at most 256 columns");
  if (documents == 0) return;
  const auto kernel = s.key_dim <= 32    ? recurrence_kernel<T, 1>
                      : s.key_dim <= 64  ? recurrence_kernel<T, 2>
                      : s.key_dim <= 128 ? recurrence_kernel<T, 4>
                                         : recurrence_kernel<T, 8>;
  const dim3 grid(unsigned(documents), unsigned(s.value_heads),
                  unsigned((s.value_dim + kWarps - 1) / kWarps));
  kernel<<<grid, 32 * kWarps, 0, stream>>>(a, 1 / sqrtf(float(s.key_dim)));
  check(cudaGetLastError());
}

}  // namespace

template <class T> void gated_delta_fwd_simple(const GatedDeltaFwd<T>& a, CudaStream stream) {
  launch_recurrence(a, a.row.document_count, stream);
}

template <class T> void gated_delta_step_cuda(const GatedDeltaFwd<T>& a, CudaStream stream) {
  GatedDeltaFwd<T> one = a;
  one.row = {};
  launch_recurrence(one, a.q.rows == 0 ? 0 : 1, stream);
}

template <class T> void gated_delta_fwd_cuda(const GatedDeltaFwd<T>& a, CudaStream stream) {
  if constexpr (__is_same(T, Bf16)) {
    if (hopper_supports(a)) return gated_delta_fwd_hopper(a, stream);
  }
  gated_delta_fwd_simple(a, stream);
}

template void gated_delta_fwd_simple(const GatedDeltaFwd<float>&, CudaStream);
template void gated_delta_fwd_simple(const GatedDeltaFwd<Bf16>&, CudaStream);
template void gated_delta_fwd_cuda(const GatedDeltaFwd<float>&, CudaStream);
template void gated_delta_fwd_cuda(const GatedDeltaFwd<Bf16>&, CudaStream);
template void gated_delta_step_cuda(const GatedDeltaFwd<float>&, CudaStream);
template void gated_delta_step_cuda(const GatedDeltaFwd<Bf16>&, CudaStream);

}  // namespace slip
