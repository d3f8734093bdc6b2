// Per-head norm and rotation: a group of L lanes has a head of a row, a lane pairs of W columns that rotate
// into each other: (c, c + R/2) below R = 2 * table.cols, and beyond it (c, c + (D-R)/2), which just pass.
#include <cuda_runtime.h>

#include "device/cuda.hpp"
#include "kernels/device/column_sum.cuh"
#include "kernels/device/dependent.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/rope.hpp"

namespace slip {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxDim = 256;

struct Pair {
  int first, second;  // columns of the head
  bool rotates;
};
template <int W> __device__ Pair pair_of(int j, int dim, int half) {
  if (j * W < half) return {j * W, half + j * W, true};
  const int c = half + j * W;  // 2 * half + (j * W - half)
  return {c, c + (dim - 2 * half) / 2, false};
}

template <int W> struct Rotation { Vec<W> cos, sin; };
template <int W> __device__ Rotation<W> rotation(const RopeTable& table, int position, int column) {
  return {load<W>(table.cos.row(position) + column), load<W>(table.sin.row(position) + column)};
}

// kPairs pairs a lane; groups of `lanes` lanes. Items are (row, head), heads fastest.
template <class T, int W, int kPairs>
__global__ void __launch_bounds__(kThreads, 4)
    head_rope_fwd_kernel(const __grid_constant__ HeadRopeFwd<T> a, int lanes) {
  allow_next();
  if (threadIdx.x == 0 && a.gain != nullptr) {
    prefetch_l2(a.gain);
    if (a.more_heads > 0) prefetch_l2(a.more_gain);
  }
  await_previous();
  const unsigned item = blockIdx.x * (kThreads / lanes) + threadIdx.x / lanes;
  const int heads = a.heads + a.more_heads;
  const int row = item / heads, head = item % heads, lane = threadIdx.x % lanes;
  const T* const gain = head < a.heads ? a.gain : a.more_gain;
  const int dim = a.head_dim, half = int(a.table.cos.cols), pairs = dim / (2 * W);
  const bool here = row < a.x.rows;  // no early return: the lanes of a warp sum together
  Vec<W> x[kPairs][2], g[kPairs][2];
  Rotation<W> turn[kPairs];
  const int position = here ? a.position[row] : 0;
  float square = 0;
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    const int j = lane + k * lanes;
    if (!here || j >= pairs) continue;
    const Pair p = pair_of<W>(j, dim, half);
    x[k][0] = load<W>(a.x.row(row) + head * dim + p.first);
    x[k][1] = load<W>(a.x.row(row) + head * dim + p.second);
    if (gain != nullptr) g[k][0] = load<W>(gain + p.first), g[k][1] = load<W>(gain + p.second);
    if (p.rotates) turn[k] = rotation<W>(a.table, position, p.first);
#pragma unroll
    for (int i = 0; i < W; ++i) square += x[k][0][i] * x[k][0][i] + x[k][1][i] * x[k][1][i];
  }
  if (a.gain != nullptr) {  // with `gain`: all lanes of a warp come here
    const float inv = rsqrtf(group_sum(square, lanes) / dim + a.eps);
    if (here && lane == 0 && a.inv_rms != nullptr) a.inv_rms[item] = inv;
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const int j = lane + k * lanes;
      if (!here || j >= pairs) continue;
#pragma unroll
      for (int i = 0; i < W; ++i) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          const float n = x[k][side][i] * inv;
          x[k][side][i] = a.centred ? (1 + g[k][side][i]) * n : g[k][side][i] * rounded<T>(n);
        }
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    const int j = lane + k * lanes;
    if (!here || j >= pairs) continue;
    const Pair p = pair_of<W>(j, dim, half);
    if (p.rotates) {
      const Rotation<W>& t = turn[k];
#pragma unroll
      for (int i = 0; i < W; ++i) {
        const float x0 = x[k][0][i], x1 = x[k][1][i];
        x[k][0][i] = x0 * t.cos[i] - x1 * t.sin[i];
        x[k][1][i] = x1 * t.cos[i] + x0 * t.sin[i];
      }
    }
    store<W>(a.y.row(row) + head * dim + p.first, x[k][0]);
    store<W>(a.y.row(row) + head * dim + p.second, x[k][1]);
  }
}

// A group walks over items group, group + groups of the grid, ...; its part of dgain grows in registers, the
// parts of the block are added in shared memory and go to scratch[block][D]; add_column_sums adds the blocks.
template <class T, class G, int W, int kPairs>
__global__ void __launch_bounds__(kThreads, 4)
    head_rope_bwd_kernel(const __grid_constant__ HeadRopeBwd<T, G> a, int lanes) {
  __shared__ alignas(16) float parts[kThreads * 2 * W * kPairs];  // [group][D]
  const int groups = kThreads / lanes, group = threadIdx.x / lanes, lane = threadIdx.x % lanes;
  const int dim = a.head_dim, half = int(a.table.cos.cols), pairs = dim / (2 * W);
  const unsigned items = unsigned(a.x.rows) * a.heads;
  Vec<W> dgain[kPairs][2] = {};
  for (unsigned first = blockIdx.x * groups; first < items; first += gridDim.x * groups) {
    const unsigned item = first + group;
    const int row = item / a.heads, head = item % a.heads;
    const bool here = item < items;
    const float inv = here ? a.inv_rms[item] : 0;
    Vec<W> u[kPairs][2];
    float dot = 0;
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const int j = lane + k * lanes;
      if (!here || j >= pairs) continue;
      const Pair p = pair_of<W>(j, dim, half);
      u[k][0] = load<W>(a.dy.row(row) + head * dim + p.first);
      u[k][1] = load<W>(a.dy.row(row) + head * dim + p.second);
      if (p.rotates) {
        const Rotation<W> t = rotation<W>(a.table, a.position[row], p.first);
#pragma unroll
        for (int i = 0; i < W; ++i) {
          const float d0 = u[k][0][i], d1 = u[k][1][i];
          u[k][0][i] = d0 * t.cos[i] + d1 * t.sin[i];
          u[k][1][i] = d1 * t.cos[i] - d0 * t.sin[i];
        }
      }
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int c = side == 0 ? p.first : p.second;
        const Vec<W> x = load<W>(a.x.row(row) + head * dim + c), gain = load<W>(a.gain + c);
#pragma unroll
        for (int i = 0; i < W; ++i) {
          dgain[k][side][i] += u[k][side][i] * (x[i] * inv);
          u[k][side][i] *= gain[i];
          dot += u[k][side][i] * (x[i] * inv);
        }
      }
    }
    const float mean = group_sum(dot, lanes) / dim;
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const int j = lane + k * lanes;
      if (!here || j >= pairs) continue;
      const Pair p = pair_of<W>(j, dim, half);
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int c = head * dim + (side == 0 ? p.first : p.second);
        const Vec<W> x = load<W>(a.x.row(row) + c);  // again, from L1: registers are short
#pragma unroll
        for (int i = 0; i < W; ++i) u[k][side][i] = inv * (u[k][side][i] - x[i] * inv * mean);
        store<W>(a.dx.row(row) + c, u[k][side]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    const int j = lane + k * lanes;
    if (j >= pairs) continue;
    const Pair p = pair_of<W>(j, dim, half);
    store<W>(parts + group * dim + p.first, dgain[k][0]);
    store<W>(parts + group * dim + p.second, dgain[k][1]);
  }
  __syncthreads();
  for (int c = threadIdx.x; c < dim; c += kThreads) {
    float sum = 0;
    for (int g = 0; g < groups; ++g) sum += parts[g * dim + c];
    a.scratch[blockIdx.x * int64_t(dim) + c] = sum;
  }
}

constexpr int kNarrowPairs = kMaxDim / 2 / 32;  // W = 1: a warp has a head of at most 256 columns

// Lanes of a group where W columns go at a time, or 0 where the head does not divide so.
template <int W> int wide_lanes(int dim, const RopeTable& table) {
  const int64_t half = table.cos.cols;
  const int lanes = dim / (2 * W);
  const bool divides = dim % (2 * W) == 0 && half % W == 0 && (dim - 2 * half) / 2 % W == 0;
  const bool power = lanes >= 1 && lanes <= 32 && (lanes & (lanes - 1)) == 0;
  return divides && power && all_fit<W>(table.cos, table.sin) ? lanes : 0;
}

void require_heads(int64_t rows, int64_t cols, int heads, int dim, const RopeTable& table) {
  require(cols == int64_t(heads) * dim && dim >= 2 && dim <= kMaxDim && dim % 2 == 0,
          "head_rope: a row is heads of an even head_dim of at most 256");
  require(rows * heads < (1ll << 31), "head_rope: too many heads for one launch");
  require(2 * table.cos.cols <= dim && table.sin.cols == table.cos.cols,
          "head_rope: more rotary components than the head has");
}

}  // namespace

template <class T> void head_rope_fwd_cuda(const HeadRopeFwd<T>& a, CudaStream stream) {
  const int heads = a.heads + a.more_heads;
  require_heads(a.x.rows, a.x.cols, heads, a.head_dim, a.table);
  require(a.y.rows == a.x.rows && a.y.cols == a.x.cols, "head_rope_fwd: y must have the shape of x");
  require(a.more_heads == 0 || (a.more_gain == nullptr) == (a.gain == nullptr),
          "head_rope_fwd: both gains or none");
  if (a.x.rows == 0) return;
  constexpr int kW = kWide<T>;
  int lanes = wide_lanes<kW>(a.head_dim, a.table);
  if (!all_fit<kW>(a.x, a.y, a.gain, a.more_gain)) lanes = 0;
  const auto kernel = lanes > 0 ? head_rope_fwd_kernel<T, kW, 1> : head_rope_fwd_kernel<T, 1, kNarrowPairs>;
  if (lanes == 0) lanes = 32;
  const int64_t groups = kThreads / lanes, blocks = (a.x.rows * heads + groups - 1) / groups;
  launch_early(kernel, unsigned(blocks), kThreads, 0, stream, a, lanes);
}

template <class T, class G> void head_rope_bwd_cuda(const HeadRopeBwd<T, G>& a, CudaStream stream) {
  require_heads(a.x.rows, a.x.cols, a.heads, a.head_dim, a.table);
  require(a.gain != nullptr, "head_rope_bwd: there is no backward pass without the norm");
  require(a.dy.rows == a.x.rows && a.dy.cols == a.x.cols && a.dx.rows == a.x.rows && a.dx.cols == a.x.cols,
          "head_rope_bwd: dy and dx must have the shape of x");
  if (a.x.rows == 0) return;
  constexpr int kW = kWide<T>;
  int lanes = wide_lanes<kW>(a.head_dim, a.table);
  if (!all_fit<kW>(a.x, a.dy, a.dx, a.gain)) lanes = 0;
  const auto kernel =
      lanes > 0 ? head_rope_bwd_kernel<T, G, kW, 1> : head_rope_bwd_kernel<T, G, 1, kNarrowPairs>;
  if (lanes == 0) lanes = 32;
  const int parts = gain_parts(a.x.rows * a.heads);
  kernel<<<parts, kThreads, 0, stream>>>(a, lanes);
  check(cudaGetLastError());
  add_column_sums(a.scratch, parts, a.head_dim, a.dgain, stream);
}

template void head_rope_fwd_cuda(const HeadRopeFwd<float>&, CudaStream);
template void head_rope_fwd_cuda(const HeadRopeFwd<Bf16>&, CudaStream);
template void head_rope_bwd_cuda(const HeadRopeBwd<float, float>&, CudaStream);
template void head_rope_bwd_cuda(const HeadRopeBwd<Bf16, Bf16>&, CudaStream);
template void head_rope_bwd_cuda(const HeadRopeBwd<Bf16, float>&, CudaStream);

}  // namespace slip
