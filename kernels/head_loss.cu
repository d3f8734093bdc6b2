// The head in chunks of whole blocks: gather rows -> logits -> statistics -> weights -> gradient in place ->
// dH. A chunk's logits are read by score_rows and read and written by logit_gradient; nothing else is rows x
// vocabulary.
#include <cuda_runtime.h>

#include <algorithm>

#include "device/cuda.hpp"
#include "kernels/device/fp8.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/embedding.hpp"
#include "kernels/head_loss.hpp"
#include "kernels/matmul.hpp"

namespace slip {
namespace {

constexpr int kThreads = 512;  // of a block, which has one row of logits
constexpr float kLog2e = 1.44269504f;
// Rows of a product are rounded up to this where the chunk has room: chunks differ in length from step to
// step, and every length would be a shape of its own for cuBLASLt. The rows beyond are left over from earlier
// and not used.
constexpr int64_t kRowStep = 128;

// Calls f(first column, Vec) over a row, 16 bytes at a time between an unaligned head and a tail.
template <class T, class F> __device__ void for_columns(T* row, int cols, F&& f) {
  constexpr int kW = kWide<T>;
  const int misaligned = int(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
  const int head = misaligned == 0 ? 0 : min(kW - misaligned, cols), packs = (cols - head) / kW;
  if (int(threadIdx.x) < head) f(int(threadIdx.x), load<1>(row + threadIdx.x));
#pragma unroll 4
  for (int p = threadIdx.x; p < packs; p += kThreads) f(head + p * kW, load<kW>(row + head + p * kW));
  const int tail = head + packs * kW + threadIdx.x;
  if (tail < cols) f(tail, load<1>(row + tail));
}

// The running maximum of a part of a row and the sum of exp(z - top) over it.
struct Soft {
  float top, sum;
};
__device__ Soft join(Soft a, Soft b) {
  const float top = fmaxf(a.top, b.top);
  if (top == -INFINITY) return {top, a.sum + b.sum};
  return {top, a.sum * exp2f((a.top - top) * kLog2e) + b.sum * exp2f((b.top - top) * kLog2e)};
}
__device__ Soft warp_join(Soft x) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2)
    x = join(x, {__shfl_xor_sync(~0u, x.top, o), __shfl_xor_sync(~0u, x.sum, o)});
  return x;
}

// Row by block, read once: log-sum-exp by running maximum and sum, and whether the label is the argmax (the
// lowest id among equals): no logit is greater, none before it equal.
template <class T>
__global__ void __launch_bounds__(kThreads)
    score_rows(const __grid_constant__ HeadLoss<T> a, const int* rows) {
  __shared__ Soft shared[kThreads / 32];
  const int row = rows[blockIdx.x], label = a.labels[row], vocab = int(a.head.rows);
  const T* z = a.chunk_logits + blockIdx.x * int64_t(vocab);
  const float mine = to_float(z[label]);
  Soft soft{-INFINITY, 0};
  bool beaten = false;
  for_columns(z, vocab, [&](int column, const auto& x) {
    constexpr int kW = sizeof(x) / sizeof(float);
    float top = x[0];
#pragma unroll
    for (int i = 1; i < kW; ++i) top = fmaxf(top, x[i]);
    if (!beaten && top >= mine) {
#pragma unroll
      for (int i = 0; i < kW; ++i) beaten |= x[i] > mine || (x[i] == mine && column + i < label);
    }
    top = fmaxf(top, soft.top);
    if (top == -INFINITY) return;
    float sum = soft.sum * exp2f((soft.top - top) * kLog2e);
#pragma unroll
    for (int i = 0; i < kW; ++i) sum += exp2f((x[i] - top) * kLog2e);
    soft = {top, sum};
  });
  soft = warp_join(soft);
  if (lane_id() == 0) shared[warp_id()] = soft;
  beaten = __syncthreads_or(beaten);
  if (warp_id() != 0) return;
  soft = warp_join(lane_id() < kThreads / 32 ? shared[lane_id()] : Soft{-INFINITY, 0});
  if (lane_id() != 0) return;
  a.nll[row] = soft.top + logf(soft.sum) - mine;
  a.correct[row] = !beaten;
}

// Thread by block of slots.
template <class T>
__global__ void weigh_blocks(const __grid_constant__ HeadLoss<T> a, int64_t first, int64_t last) {
  const int64_t b = first + blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (b >= last) return;
  block_weights(a.rule, a.block, a.valid + b * a.block, a.nll + b * a.block, a.weight + b * a.block);
}

// Row by block, read and written once: z becomes weight * (softmax(z) - [label]), or that goes to
// a.fp8.gradient.
template <class T, bool fp8>
__global__ void __launch_bounds__(kThreads)
    logit_gradient(const __grid_constant__ HeadLoss<T> a, const int* rows) {
  const int row = rows[blockIdx.x], label = a.labels[row], vocab = int(a.head.rows);
  T* z = a.chunk_logits + blockIdx.x * int64_t(vocab);
  const float lse = a.nll[row] + to_float(z[label]), weight = a.weight[row];
  __syncthreads();  // the label's logit has been read by all before it is written
  const float factor = fp8 ? kE4m3Largest : weight;
  for_columns(z, vocab, [&](int column, auto x) {
    constexpr int kW = sizeof(x) / sizeof(float);
#pragma unroll
    for (int i = 0; i < kW; ++i)
      x[i] = factor * (exp2f((x[i] - lse) * kLog2e) - (column + i == label ? 1.0f : 0.0f));
    if constexpr (fp8) {
      store_e4m3<kW>(a.fp8.gradient.q.row(blockIdx.x) + column, x);
    } else {
      store<kW>(z + column, x);
    }
  });
  if (fp8 && threadIdx.x == 0) a.fp8.gradient.scale[blockIdx.x] = weight / kE4m3Largest;
}

// out row index[r] = row r of from; a thread copies W elements.
template <class T, int W> __global__ void scatter_rows(View2<const T> from, const int* index, View2<T> out) {
  const auto [row, c] = row_col<W>(from.cols);
  if (c < from.cols) store<W>(out.row(index[row]) + c, load<W>(from.row(row) + c));
}

// One chunk: blocks [first, last), whose `count` valid rows `rows` lists.
template <class T>
void head_loss_chunk(const HeadLoss<T>& a, int64_t first, int64_t last, const int* rows, int64_t count,
                     const Queue& q) {
  const int64_t hidden = a.hidden.cols, vocab = a.head.rows;
  const int64_t padded = std::min((count + kRowStep - 1) / kRowStep * kRowStep, a.chunk_rows);
  const View2<T> h(a.chunk_hidden, padded, hidden), dh(a.chunk_dhidden, padded, hidden),
      logits(a.chunk_logits, padded, vocab);
  if (count > 0) {
    gather_rows_cuda<T>({.table = a.hidden, .index = rows, .out = h.rows_from(0, count)}, q.stream);
    if (a.fp8.empty()) {
      matmul_cuda<T, T>({.form = Product::nt, .a = h, .b = a.head, .c = logits}, q);
    } else {
      const Fp8Rows quantized = a.fp8.hidden.rows_from(0, padded);
      quantize_fp8_cuda<T>({h, quantized, {}, a.fp8.largest}, q.stream);
      fp8_matmul_cuda<T, T>({quantized, a.fp8.head, logits, false, true}, q);
    }
    score_rows<T><<<unsigned(count), kThreads, 0, q.stream>>>(a, rows);
    check(cudaGetLastError());
  }
  weigh_blocks<T><<<unsigned((last - first + 63) / 64), 64, 0, q.stream>>>(a, first, last);
  check(cudaGetLastError());
  if (count == 0 || a.dhidden.empty()) return;
  const auto gradient = a.fp8.empty() ? logit_gradient<T, false> : logit_gradient<T, true>;
  gradient<<<unsigned(count), kThreads, 0, q.stream>>>(a, rows);
  check(cudaGetLastError());
  if (a.fp8.empty()) {
    matmul_cuda<T, T>({.form = Product::nn, .a = logits, .b = a.head, .c = dh}, q);
  } else {
    fp8_matmul_cuda<T, T>({a.fp8.gradient.rows_from(0, padded), a.fp8.turned, dh}, q);
  }
  constexpr int kW = kWide<T>;
  const bool wide = all_fit<kW>(dh, a.dhidden);
  const RowGrid grid = row_grid(count, hidden / (wide ? kW : 1));
  const auto kernel = wide ? scatter_rows<T, kW> : scatter_rows<T, 1>;
  kernel<<<grid.blocks, grid.threads, 0, q.stream>>>(dh.rows_from(0, count), rows, a.dhidden);
  check(cudaGetLastError());
}

}  // namespace

template <class T> void head_loss_cuda(const HeadLoss<T>& a, const Queue& q) {
  const int64_t total = a.hidden.rows, hidden = a.hidden.cols;
  require(a.block >= 1 && total % a.block == 0 && a.head.cols == hidden, "head_loss: shapes do not fit");
  require(a.chunk_rows >= a.block, "head_loss: a chunk must hold a block");
  require(a.dhidden.empty() || (a.dhidden.rows == total && a.dhidden.cols == hidden),
          "head_loss: dhidden must have the shape of hidden");
  require(a.head.rows < (1ll << 31), "head_loss: the vocabulary is too large");
  if (total == 0 || hidden == 0) return;
  check(cudaMemsetAsync(a.nll, 0, size_t(total) * sizeof(float), q.stream));
  check(cudaMemsetAsync(a.correct, 0, size_t(total), q.stream));
  if (!a.dhidden.empty()) {
    const size_t width = size_t(hidden) * sizeof(T),
                 pitch = total > 1 ? size_t(a.dhidden.stride) * sizeof(T) : width;
    check(cudaMemset2DAsync(a.dhidden.data, pitch, 0, width, size_t(total), q.stream));
  }
  const int64_t blocks = total / a.block;
  for (int64_t first = 0; first < blocks;) {
    int64_t last = first;
    const int begin = a.block_begin_host[first];
    while (last < blocks && a.block_begin_host[last + 1] - begin <= a.chunk_rows) ++last;
    require(last > first, "head_loss: a block has more valid rows than it has slots");
    head_loss_chunk(a, first, last, a.rows + begin, a.block_begin_host[last] - begin, q);
    first = last;
  }
}

template void head_loss_cuda(const HeadLoss<float>&, const Queue&);
template void head_loss_cuda(const HeadLoss<Bf16>&, const Queue&);

}  // namespace slip
