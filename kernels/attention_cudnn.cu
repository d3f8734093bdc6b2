#include "device/cuda.hpp"
#include "kernels/attention_cudnn.hpp"

namespace slip {
namespace {

__global__ void packing_kernel(const __grid_constant__ CudnnPacking a) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i > a.count) return;
  const int begin = a.cu[min(i, a.documents)];
  if (i < a.count) a.lengths[i] = a.cu[min(i + 1, a.documents)] - begin;
  a.qkv_begin[i] = static_cast<int>(begin * a.qkv_stride);
  a.out_begin[i] = static_cast<int>(begin * a.out_stride);
}

}  // namespace

void cudnn_packing_cuda(const CudnnPacking& a, CudaStream stream) {
  packing_kernel<<<static_cast<unsigned>(a.count / 256 + 1), 256, 0, stream>>>(a);
  check(cudaGetLastError());
}

}  // namespace slip
