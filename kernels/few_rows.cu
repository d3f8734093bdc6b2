// A block has columns of C, eight at a time, and a warp a stretch of K: its part of A stays in registers, as
// operands of mma.sync, while rows of B pass through the warp's own ring in shared memory. The warps' sums
// are added in shared memory, in order. Where K is longer than a block's registers hold (4096), blocks share
// it: the last of them to finish a range of columns adds the parts, in order.
// The grid is the same on every device, so the bits do not depend on it.
#include <cuda_runtime.h>

#include "kernels/device/async_copy.cuh"
#include "kernels/device/dependent.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/swiglu.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/few_rows.hpp"
#include "kernels/partials.hpp"

namespace slip {
namespace {

using namespace hopper;

constexpr int kWarps = 16, kThreads = 32 * kWarps;
// As if of 640 threads: 96 registers each, so that small kernels run beside it.
constexpr int kBoundThreads = 640;
constexpr int kTile = 8;                  // columns of C of one mma
constexpr int kPiece = 64;                // of K: 128 bytes of a row of B
constexpr int kPieceBytes = kTile * 128;  // of a tile
constexpr int kMostPieces = 4;            // of a warp: 64 registers of A
constexpr int kSums = kFewRows * kTile;

// A stage is a tile of a warp's pieces; as many as 128 KB hold.
template <int P> constexpr int kStages = 8 / P;
template <int P> constexpr int kRingBytes = kStages<P>* P* kPieceBytes;  // of a warp
template <bool kGated> constexpr int kSumsBytes = 2 * kWarps*(kGated ? 2 : 1) * kSums* int(sizeof(float));
template <int P, bool kGated> constexpr int kSharedBytes = kWarps* kRingBytes<P> + kSumsBytes<kGated>;

struct Split {
  int slices;  // of K, blocks in y
  int pieces;  // of a warp
};
Split split_of(int64_t k) {
  const int64_t pieces = (k + kPiece - 1) / kPiece, block = kWarps * kMostPieces;
  const int64_t slices = (pieces + block - 1) / block;
  return {int(slices), int((pieces + slices * kWarps - 1) / (slices * kWarps))};
}

template <class Out> struct FewRowsArgs {
  Matmul<Bf16, Out> p;
  FewRowsScratch scratch;
};

// P pieces a warp. An mma adds over 16 of K in any order, so lane (g, t) takes 16 bytes at 8 t of every 32
// of K, in A and in B: two mmas' operands without a shuffle.
// kGated: B holds a gate and a row further down an up for every column; tiles of both alternate.
template <class Out, int P, bool kGated>
__global__ void __launch_bounds__(kBoundThreads, 1)
    few_rows_kernel(const __grid_constant__ FewRowsArgs<Out> args) {
  // The rings come first: where 128 bytes of a row lie across lines of shared memory, copies take a fifth
  // longer. Nothing is static, so the pool begins at such a line.
  extern __shared__ __align__(128) char pool[];
  constexpr int kParts = kGated ? 2 : 1;
  using Sums = float[kWarps][kParts * kSums];
  Sums* const sums = reinterpret_cast<Sums*>(pool + kWarps * kRingBytes<P>);  // two, used in turn
  const View2<const Bf16>&a = args.p.a, &b = args.p.b;
  const View2<Out>& c = args.p.c;
  const int lane = lane_id(), g = lane / 4, t = lane % 4, rows = int(c.rows), n = int(c.cols);
  const int tiles = (n + kTile - 1) / kTile, begin = int(blockIdx.x), step = int(gridDim.x);
  const int64_t down = int64_t(step) * kTile * b.stride, across = kGated ? n * b.stride : 0;
  const int k0 = (int(blockIdx.y) * kWarps + warp_id()) * P * kPiece, depth = int(b.cols);

  // The ring: 8 lanes copy 128 bytes of a row. Units of odd rows are exchanged by halves, so that neither
  // the copy nor the reading below meets a bank twice.
  const uint32_t ring = shared_address(pool) + warp_id() * kRingBytes<P>;
  const int row = lane / 8, unit = lane % 8;
  const uint32_t to = row * 128 + (unit ^ row % 2 * 4) * 16;
  const Bf16* from = b.row(int64_t(begin) * kTile + row) + k0 + unit * 8;
  const uint64_t policy = read_once();  // else B drives A and the cache of attention out of L2
  int ahead = begin, load_stage = 0;
  bool ups = false;
  const auto load_tile = [&] {
    if (ahead < tiles) {
#pragma unroll
      for (int i = 0; i < P * 2; ++i) {
        const int k = i / 2 * kPiece, r = i % 2 * 4;
        const bool there = ahead * kTile + row + r < n && k0 + unit * 8 + k < depth;
        copy_16_once(ring + (load_stage * P + i / 2) * kPieceBytes + r * 128 + to,
                     there ? from + r * b.stride + k : b.data, there, policy);
      }
      if (!kGated || ups) ahead += step;
      from += !kGated ? down : ups ? down - across : across;
      ups = !ups;
      if (++load_stage == kStages<P>) load_stage = 0;
    }
    commit();
  };
  const auto fill = [&] {
#pragma unroll
    for (int i = 0; i < kStages<P>; ++i) load_tile();
  };
  allow_next();
  if (args.p.b_settled) fill();
  await_previous();

  uint4 x[P * 2][2];  // rows g and g + 8
#pragma unroll
  for (int i = 0; i < P * 2; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int k = k0 + i * 32 + t * 8, r = g + 8 * h;
      x[i][h] = r < rows && k < depth ? *reinterpret_cast<const uint4*>(a.row(r) + k) : uint4{};
    }
  }

  if (!args.p.b_settled) fill();

  const auto put = [&](int r, int64_t column, float sum) {
    if constexpr (sizeof(Out) == 2) {
      c.at(r, column).bits = static_cast<uint16_t>(slip::pack_bf16(sum, 0));
    } else {
      c.at(r, column) = sum;
    }
  };
  const uint32_t read[2] = {ring + g * 128 + (t ^ g % 2 * 4) * 16,
                            ring + g * 128 + (t ^ (1 - g % 2) * 4) * 16};
  int stage = 0;
  for (int tile = begin, count = 0; tile < tiles; tile += step, ++count) {
    const int turn = count % 2;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      wait_for<kStages<P> - 1>();
      __syncwarp();
      float low[4] = {}, high[4] = {};
#pragma unroll
      for (int i = 0; i < P * 2; ++i) {
        const uint4 w = load_shared_16(read[i % 2] + (stage * P + i / 2) * kPieceBytes);
        mma_bf16(low, {x[i][0].x, x[i][1].x, x[i][0].y, x[i][1].y}, w.x, w.y);
        mma_bf16(high, {x[i][0].z, x[i][1].z, x[i][0].w, x[i][1].w}, w.z, w.w);
      }
      __syncwarp();
      load_tile();
      if (++stage == kStages<P>) stage = 0;
      float* const mine = sums[turn][warp_id()] + part * kSums + g * kTile + t * 2;
      *reinterpret_cast<float2*>(mine) = make_float2(low[0] + high[0], low[1] + high[1]);
      *reinterpret_cast<float2*>(mine + 8 * kTile) = make_float2(low[2] + high[2], low[3] + high[3]);
    }
    __syncthreads();
    // Four warps take turns at adding; the others go on.
    if (warp_id() / 4 != count % 4) continue;
    const int e = threadIdx.x % kSums, r = e / kTile;
    const int64_t column = int64_t(tile) * kTile + e % kTile;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[turn][w][e];
    if constexpr (kGated) {
      float up = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) up += sums[turn][w][kSums + e];
      const float gate = rounded<Out>(sum);  // as the product would have stored it
      sum = activation(gate, sigmoid(gate), rounded<Out>(up));
    }
    if (r >= rows || column >= n) continue;
    if (gridDim.y == 1) {
      put(r, column, sum);
    } else {
      args.scratch.parts[(int64_t(blockIdx.y) * kFewRows + r) * n + column] = sum;
    }
  }
  if (gridDim.y == 1) return;

  __syncthreads();
  bool last = false;
  if (threadIdx.x == 0) {
    __threadfence();  // what the whole block has written, by way of the barrier
    last = atomicAdd(args.scratch.tickets + blockIdx.x, 1) == gridDim.y - 1;
    if (last) args.scratch.tickets[blockIdx.x] = 0;
    __threadfence();
  }
  if (!__syncthreads_or(last)) return;
  // All loads of a round are on their way before the first is used.
  constexpr int kRound = 4, kSlices = 4;
  const int count = (tiles - begin + step - 1) / step * kTile * rows, slices = int(gridDim.y);
  for (int e0 = threadIdx.x; e0 < count; e0 += kRound * kThreads) {
    float sum[kRound] = {};
    for (int s0 = 0; s0 < slices; s0 += kSlices) {
      float part[kRound][kSlices];
#pragma unroll
      for (int u = 0; u < kRound; ++u) {
        const int e = e0 + u * kThreads, r = e / kTile % rows;
        const int64_t column = int64_t(begin + e / (kTile * rows) * step) * kTile + e % kTile;
#pragma unroll
        for (int i = 0; i < kSlices; ++i) {
          const bool there = e < count && column < n && s0 + i < slices;
          part[u][i] = there ? __ldcg(args.scratch.parts + (int64_t(s0 + i) * kFewRows + r) * n + column) : 0;
        }
      }
#pragma unroll
      for (int u = 0; u < kRound; ++u) {
#pragma unroll
        for (int i = 0; i < kSlices; ++i) sum[u] += part[u][i];
      }
    }
#pragma unroll
    for (int u = 0; u < kRound; ++u) {
      const int e = e0 + u * kThreads;
      const int64_t column = int64_t(begin + e / (kTile * rows) * step) * kTile + e % kTile;
      if (e < count && column < n) put(e / kTile % rows, column, sum[u]);
    }
  }
}

template <class Out, int P, bool kGated>
void launch(const FewRowsArgs<Out>& args, int slices, CudaStream stream) {
  const auto kernel = few_rows_kernel<Out, P, kGated>;
  static const bool ready = [&] {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<P, kGated>));
    return true;
  }();
  (void)ready;
  const int64_t tiles = (args.p.c.cols + kTile - 1) / kTile, most = kFewRowsBlocks / slices;
  const dim3 grid(unsigned(tiles < most ? tiles : most), unsigned(slices));
  launch_early(kernel, grid, kThreads, kSharedBytes<P, kGated>, stream, args);
}

template <class Out, bool kGated>
void launch(const FewRowsArgs<Out>& args, const Split& split, CudaStream stream) {
  switch (split.pieces) {
    case 1:
      return launch<Out, 1, kGated>(args, split.slices, stream);
    case 2:
      return launch<Out, 2, kGated>(args, split.slices, stream);
    case 3:
      return launch<Out, 3, kGated>(args, split.slices, stream);
    default:
      return launch<Out, 4, kGated>(args, split.slices, stream);
  }
}

}  // namespace

bool can_launch_early() {
  static const bool can = [] {
    int device = 0, major = 0;
    cudaFuncAttributes kernel;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    check(cudaFuncGetAttributes(&kernel, few_rows_kernel<Bf16, 1, false>));
    return major >= 9 && kernel.ptxVersion >= 90;  // older code, compiled anew by the driver, does not wait
  }();
  return can;
}

// The current device has room for the largest ring and the sums beside it: 160 KB, as sm_80 and sm_90 have.
static bool has_shared_memory() {
  static const bool has = [] {
    int device = 0, bytes = 0;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return bytes >= kSharedBytes<kMostPieces, true>;
  }();
  return has;
}

template <class Out> bool few_rows_takes(const Matmul<Bf16, Out>& p) {
  return p.form == Product::nt && !p.accumulate && p.c.rows >= 1 && p.c.rows <= kFewRows && p.c.cols >= 1 &&
         p.a.cols >= 1 && p.b.rows < (int64_t{1} << 28) && p.a.cols <= 65536 && all_fit<8>(p.a, p.b) &&
         has_shared_memory();
}

int64_t few_rows_parts(int64_t n, int64_t k) {
  const int slices = split_of(k).slices;
  return slices == 1 ? 0 : slices * kFewRows * n;
}

template <class Out>
void few_rows_matmul(const Matmul<Bf16, Out>& p, const FewRowsScratch& scratch, CudaStream stream) {
  require(few_rows_takes(p), "few_rows_matmul: not a product of at most 16 aligned rows");
  require(scratch.part_count >= few_rows_parts(p.c.cols, p.a.cols), "few_rows_matmul: too little scratch");
  launch<Out, false>({p, scratch}, split_of(p.a.cols), stream);
}

bool few_rows_swiglu_cuda(const SwigluProduct<Bf16>& a, CudaStream stream) {
  const Matmul<Bf16> p{.form = Product::nt, .a = a.a, .b = a.b, .c = a.act, .b_settled = a.b_settled};
  const Split split = split_of(a.a.cols);
  if (!few_rows_takes(p) || split.slices > 1) return false;
  require(a.a.rows == a.act.rows && a.b.rows == 2 * a.act.cols && a.b.cols == a.a.cols,
          "few_rows_swiglu: b must hold a gate and an up for every column of act");
  launch<Bf16, true>({p, {}}, split, stream);
  return true;
}

template bool few_rows_takes(const Matmul<Bf16, Bf16>&);
template bool few_rows_takes(const Matmul<Bf16, float>&);
template void few_rows_matmul(const Matmul<Bf16, Bf16>&, const FewRowsScratch&, CudaStream);
template void few_rows_matmul(const Matmul<Bf16, float>&, const FewRowsScratch&, CudaStream);

}  // namespace slip
