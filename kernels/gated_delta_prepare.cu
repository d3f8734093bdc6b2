// What a chunk needs no state for: see gated_delta_hopper.hpp.
#include <cuda_runtime.h>

#include "device/cuda.hpp"
#include "kernels/gated_delta_hopper.cuh"

namespace slip::hopper {
namespace {

constexpr float kLog2e = 1.4426950408889634f;
constexpr int kStride = 72;    // floats of a row of A and of its inverse
constexpr int kMRow = 144;     // bytes of a row of M times a diagonal
constexpr int kThreads = 128;  // a warp has 16 rows of a chunk

// Shared memory: K, V, then Q and, once Q K^T is done, A in its place; M diag(beta e^G) and M diag(beta); the
// gates of up to four value heads; two barriers.
constexpr int kV = kDeltaTile, kA = 2 * kDeltaTile, kMw = kA + 64 * kStride * 4, kMu = kMw + 64 * kMRow,
              kGates = kMu + 64 * kMRow, kBars = kGates + 3 * kDeltaMaxGroup * 256;
constexpr int kShared = kBars + 16 + 1024;
static_assert(64 * kStride * 4 >= kDeltaTile);

__device__ __forceinline__ void put_bf16(uint8_t* at, float x) {
  *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(pack_bf16(x, 0));
}

// One warp, s = [[M00, .], [A10, M11]] with blocks of 16 N rows: rows 16 mt.. and the column tiles n0, n0 + 1
// of M10 = -(M11 A10) M00, to put(row, column, value) and, for N = 1, back to s. TF32 products, fp32 sums. In
// the second product k runs 0 2 4 6 1 3 5 7, so that the accumulator of the first is its operand as it
// stands.
template <int N, class Put> __device__ __forceinline__ void merge(float* s, int mt, int n0, Put put) {
  const int g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3;
  float* a10 = s + 16 * N * kStride;
  const float* m11 = a10 + 16 * N + 16 * mt * kStride;
  float x[2 * N][4] = {};
#pragma unroll
  for (int ks = 0; ks < 2 * N; ++ks) {
    if (ks >= 2 * mt + 2) continue;
    const float* p = m11 + g * kStride + 8 * ks + t;
    const uint32_t a[4] = {to_tf32(p[0]), to_tf32(p[8 * kStride]), to_tf32(p[4]),
                           to_tf32(p[8 * kStride + 4])};
#pragma unroll
    for (int n = 0; n < 2 * N; ++n) {
      const float* q = a10 + (8 * ks + t) * kStride + 8 * n + g;
      mma_tf32(x[n], a, to_tf32(q[0]), to_tf32(q[4 * kStride]));
    }
  }
  __syncwarp();
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int n = n0 + e;
    float y[4] = {};
#pragma unroll
    for (int ks = 0; ks < 2 * N; ++ks) {
      const uint32_t a[4] = {to_tf32(x[ks][0]), to_tf32(x[ks][2]), to_tf32(x[ks][1]), to_tf32(x[ks][3])};
      const float* q = s + (8 * ks + 2 * t) * kStride + 8 * n + g;
      if (8 * ks + 7 >= 8 * n / 16 * 16) mma_tf32(y, a, to_tf32(q[0]), to_tf32(q[kStride]));
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int i = 16 * mt + g + 8 * (k >> 1), j = 8 * n + 2 * t + (k & 1);
      put(i, j, -y[k]);
      if (N == 1) a10[i * kStride + j] = -y[k];
    }
  }
}

// The inverse of the unit lower triangular 16 x 16 block of I + A that begins at `a`, in place, by forward
// substitution in fp32: one warp, two lanes a column. put(row, column, value) gets every element.
template <class Put> __device__ __forceinline__ void invert_diagonal(float* a, Put put) {
  const int l = threadIdx.x & 31, j = l >> 1, p = l & 1;
  float m[8] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float s0 = 0, s1 = 0;
#pragma unroll
    for (int g = 0; g <= i / 8; ++g) {
      const float4 x = *reinterpret_cast<const float4*>(a + i * kStride + 8 * g + 4 * p);
      s0 = fmaf(x.x, m[4 * g], s0), s1 = fmaf(x.y, m[4 * g + 1], s1);
      s0 = fmaf(x.z, m[4 * g + 2], s0), s1 = fmaf(x.w, m[4 * g + 3], s1);
    }
    float s = s0 + s1;
    s += __shfl_xor_sync(~0u, s, 1);
    const float value = (i == j ? 1.0f : 0.0f) - s;
    m[(i >> 3) * 4 + (i & 3)] = ((i >> 2) & 1) == p ? value : m[(i >> 3) * 4 + (i & 3)];
  }
  __syncwarp();
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int i = 8 * (e >> 2) + 4 * p + (e & 3);
    a[i * kStride + j] = m[e];
    put(i, j, m[e]);
  }
}

// Gates of a value head, by one warp with two tokens a lane: G in units of log2, beta, e^G; the factors that
// the scan wants go to scratch. Past the chunk's tokens g = 0 and beta = 0.
__device__ __forceinline__ void make_gates(const DeltaPrepareArgs& a, const DeltaChunk& c, int h, float* sum,
                                           float* beta, float* grown, float2* scratch) {
  const int l = threadIdx.x & 31;
  float g[2] = {}, b[2] = {};
  const float rate = -expf(a.a_log[h]) * kLog2e, bias = a.dt_bias[h];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    if (2 * l + e >= c.tokens) continue;
    const float x = to_float(a.a.at(c.first + 2 * l + e, h)) + bias;
    g[e] = rate * (x > 20 ? x : log1pf(expf(x)));
    b[e] = 1 / (1 + expf(-to_float(a.b.at(c.first + 2 * l + e, h))));
  }
  float s = g[0] + g[1];
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const float y = __shfl_up_sync(~0u, s, d);
    if (l >= d) s += y;
  }
  const float last = __shfl_sync(~0u, s, 31), before = s - g[1];
  sum[2 * l] = before, sum[2 * l + 1] = s;
  beta[2 * l] = b[0], beta[2 * l + 1] = b[1];
  grown[2 * l] = exp2_ftz(before), grown[2 * l + 1] = exp2_ftz(s);
  scratch[l] = make_float2(exp2_ftz(before), exp2_ftz(s));
  scratch[32 + l] = make_float2(exp2_ftz(last - before), exp2_ftz(last - s));
}

// A block has a chunk of a key head and its value heads one after the other. K K^T and Q K^T are made once
// and stay in registers (lower triangle, 16 rows a warp). K and V go into the products as they are: the
// diagonals sit in the columns of M, so that beta v and beta e^G k are never rounded.
__global__ void __launch_bounds__(kThreads, 3)
    prepare_kernel(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                   const __grid_constant__ TensorMap map_v, const __grid_constant__ DeltaPrepareArgs a) {
#if SLIP_HOPPER_CODE
  extern __shared__ uint8_t pool_memory[];
  const uint32_t pool = (shared_address(pool_memory) + 1023) & ~1023u;
  uint8_t* const pool_at = pool_memory + (pool - shared_address(pool_memory));
  const uint32_t k_tile = pool, v_tile = pool + kV, q_tile = pool + kA, bar = pool + kBars, v_bar = bar + 8;
  float* const A = reinterpret_cast<float*>(pool_at + kA);
  float* const gates = reinterpret_cast<float*>(pool_at + kGates);
  const int w = uniform(threadIdx.x >> 5), l = threadIdx.x & 31, r8 = l & 7, m4 = l >> 3;
  const int key_head = blockIdx.x % a.key_heads, chunk = blockIdx.x / a.key_heads;
  const DeltaChunk c = a.chunks[chunk];
  if (threadIdx.x == 0) {
    mbar_init(bar, 1), mbar_init(v_bar, 1);
    mbar_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbar_expect(bar, 2 * kDeltaTile);
    load_tile(k_tile, map_k, bar, key_head * kDeltaDim, c.first);
    load_tile(q_tile, map_q, bar, key_head * kDeltaDim, c.first);
    mbar_expect(v_bar, kDeltaTile);
    load_tile(v_tile, map_v, v_bar, key_head * a.group * kDeltaDim, c.first);
  }
  const auto block_of = [&](int v) {
    return a.scratch + ((int64_t(chunk) * a.key_heads + key_head) * a.group + v) * kDeltaBlockBytes;
  };
  if (w < a.group) {
    make_gates(a, c, key_head * a.group + w, gates + w * 192, gates + w * 192 + 64, gates + w * 192 + 128,
               reinterpret_cast<float2*>(block_of(w) + kWBytes + kPBytes));
  }
  mbar_wait(bar, 0);
  float kk[8][4] = {}, qk[8][4] = {};
#pragma unroll
  for (int ks = 0; ks < 8; ++ks) {
    uint32_t ak[4], aq[4], b[4];
    const uint32_t at = tile_offset(16 * w + (m4 & 1) * 8 + r8, 2 * ks + (m4 >> 1));
    ldmatrix(ak, k_tile + at);
    ldmatrix(aq, q_tile + at);
#pragma unroll
    for (int np = 0; np < 4; ++np) {
      if (np > w) continue;
      ldmatrix(b, k_tile + tile_offset(16 * np + (m4 >> 1) * 8 + r8, 2 * ks + (m4 & 1)));
      mma_bf16(kk[2 * np], ak, b[0], b[1]);
      mma_bf16(kk[2 * np + 1], ak, b[2], b[3]);
      mma_bf16(qk[2 * np], aq, b[0], b[1]);
      mma_bf16(qk[2 * np + 1], aq, b[2], b[3]);
    }
  }
#pragma unroll 1
  for (int v = 0; v < a.group; ++v) {
    __syncthreads();  // Q, or what the head before left, is no longer read; gates are visible
    if (v > 0 && threadIdx.x == 0) {
      mbar_expect(v_bar, kDeltaTile);
      load_tile(v_tile, map_v, v_bar, (key_head * a.group + v) * kDeltaDim, c.first);
    }
    const float *sum = gates + v * 192, *beta = sum + 64, *grown = sum + 128;
    uint8_t* const block = block_of(v);
    {  // P to scratch, zeros above the diagonal too; A, strictly lower, to shared memory
      const int i0 = 16 * w + (l >> 2), i1 = i0 + 8;
      const float g0 = sum[i0], g1 = sum[i1], b0 = beta[i0], b1 = beta[i1];
#pragma unroll
      for (int j8 = 0; j8 < 8; ++j8) {
        const int j = 8 * j8 + 2 * (l & 3);
        const float2 gj = *reinterpret_cast<const float2*>(&sum[j]);
        // Selected before they are multiplied: above the diagonal the exponential overflows.
        const float e00 = j <= i0 ? exp2_ftz(g0 - gj.x) : 0, e01 = j + 1 <= i0 ? exp2_ftz(g0 - gj.y) : 0;
        const float e10 = j <= i1 ? exp2_ftz(g1 - gj.x) : 0, e11 = j + 1 <= i1 ? exp2_ftz(g1 - gj.y) : 0;
        uint32_t* p = reinterpret_cast<uint32_t*>(block + kWBytes + j8 * 1024 + w * 256) + l;
        p[0] = pack_bf16(qk[j8][0] * e00 * a.scale, qk[j8][1] * e01 * a.scale);
        p[32] = pack_bf16(qk[j8][2] * e10 * a.scale, qk[j8][3] * e11 * a.scale);
        if (j8 > 2 * w + 1) continue;
        *reinterpret_cast<float2*>(&A[i0 * kStride + j]) =
            make_float2(j < i0 ? b0 * kk[j8][0] * e00 : 0, j + 1 < i0 ? b0 * kk[j8][1] * e01 : 0);
        *reinterpret_cast<float2*>(&A[i1 * kStride + j]) =
            make_float2(j < i1 ? b1 * kk[j8][2] * e10 : 0, j + 1 < i1 ? b1 * kk[j8][3] * e11 : 0);
      }
    }
    __syncthreads();
    // M = (I + A)^-1: the diagonal blocks of 16, then those below them, 16 wide, at last 32 wide.
    const auto put = [&](int i, int j, float x) {
      const float y = x * beta[j];
      put_bf16(pool_at + kMw + i * kMRow + 2 * j, y * grown[j]);
      put_bf16(pool_at + kMu + i * kMRow + 2 * j, y);
    };
    invert_diagonal(A + 16 * w * (kStride + 1),
                    [&](int i, int j, float x) { put(16 * w + i, 16 * w + j, x); });
    __syncthreads();
    if (w < 2) {
      merge<1>(A + 32 * w * (kStride + 1), 0, 0,
               [&](int i, int j, float x) { put(32 * w + 16 + i, 32 * w + j, x); });
    }
    __syncthreads();
    merge<2>(A, w & 1, (w >> 1) * 2, [&](int i, int j, float x) { put(32 + i, j, x); });
    __syncthreads();
    {  // W: this warp makes columns 32 w to 32 w + 31
      uint32_t kb[4][2][4];
#pragma unroll
      for (int t = 0; t < 4; ++t) {
#pragma unroll
        for (int q = 0; q < 2; ++q)
          ldmatrix_trans(kb[t][q],
                         k_tile + tile_offset(16 * t + (m4 & 1) * 8 + r8, 4 * w + 2 * q + (m4 >> 1)));
      }
#pragma unroll
      for (int mt = 0; mt < 4; ++mt) {
        float sums[4][4] = {};
#pragma unroll
        for (int t = 0; t <= mt; ++t) {
          uint32_t am[4];
          ldmatrix(am, pool + kMw + (16 * mt + (m4 & 1) * 8 + r8) * kMRow + (2 * t + (m4 >> 1)) * 16);
#pragma unroll
          for (int q = 0; q < 4; ++q)
            mma_bf16(sums[q], am, kb[t][q >> 1][2 * (q & 1)], kb[t][q >> 1][2 * (q & 1) + 1]);
        }
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          uint32_t* p = reinterpret_cast<uint32_t*>(block + (4 * w + q) * 1024 + mt * 256) + l;
          p[0] = pack_bf16(sums[q][0], sums[q][1]);
          p[32] = pack_bf16(sums[q][2], sums[q][3]);
        }
      }
    }
    mbar_wait(v_bar, v & 1);
    {  // U^T = V^T (M diag(beta))^T: this warp makes rows 32 w to 32 w + 31
      uint32_t va[2][4][4];
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int t = 0; t < 4; ++t)
          ldmatrix_trans(va[s][t],
                         v_tile + tile_offset(16 * t + (m4 >> 1) * 8 + r8, 4 * w + 2 * s + (m4 & 1)));
      }
#pragma unroll
      for (int np = 0; np < 4; ++np) {
        float sums[2][2][4] = {};
#pragma unroll
        for (int t = 0; t <= np; ++t) {
          uint32_t b[4];
          ldmatrix(b, pool + kMu + (16 * np + (m4 >> 1) * 8 + r8) * kMRow + (2 * t + (m4 & 1)) * 16);
#pragma unroll
          for (int s = 0; s < 2; ++s) {
            mma_bf16(sums[s][0], va[s][t], b[0], b[1]);
            mma_bf16(sums[s][1], va[s][t], b[2], b[3]);
          }
        }
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          const auto& x = sums[s];
          reinterpret_cast<uint4*>(block + kHeadBytes)[((2 * w + s) * 4 + np) * 32 + l] =
              make_uint4(pack_bf16(x[0][0], x[0][1]), pack_bf16(x[0][2], x[0][3]),
                         pack_bf16(x[1][0], x[1][1]), pack_bf16(x[1][2], x[1][3]));
        }
      }
    }
  }
#endif
}

}  // namespace

void launch_delta_prepare(const TensorMap& q, const TensorMap& k, const TensorMap& v,
                          const DeltaPrepareArgs& a, int chunks, CudaStream stream) {
  check(cudaFuncSetAttribute(prepare_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  prepare_kernel<<<unsigned(chunks * a.key_heads), kThreads, kShared, stream>>>(q, k, v, a);
  check(cudaGetLastError());
}

}  // namespace slip::hopper
