// Where work runs and in what order: the CPU (at once, in the calling thread) or a CUDA stream.
// A model is written once against Queue; an op asks it which of its implementations to call.
#pragma once
#include "core/bf16.hpp"
#include "core/check.hpp"

struct CUstream_st;

namespace slip {

using CudaStream = CUstream_st*;  // cudaStream_t, without CUDA's headers

struct BlasContext;  // cuBLASLt handle, workspace and chosen algorithms: kernels/matmul.cu

enum class Device { cpu, cuda };

struct Queue {
  Device device = Device::cpu;
  CudaStream stream = nullptr;
  BlasContext* blas = nullptr;
  bool on_cpu() const { return device == Device::cpu; }
};

#ifndef SLIP_HAVE_CUDA
#define SLIP_HAVE_CUDA 0
#endif

template <class T> inline constexpr bool kHasCpu = !__is_same(T, Bf16);                       // float, double
template <class T> inline constexpr bool kHasCuda = SLIP_HAVE_CUDA && !__is_same(T, double);  // float, Bf16

// Calls the implementation that the queue asks for. The arguments are generic lambdas, so an implementation
// that does not exist for T is never referred to.
template <class T, class OnCpu, class OnCuda>
void dispatch(const Queue& q, OnCpu&& on_cpu, OnCuda&& on_cuda) {
  if (q.on_cpu()) {
    if constexpr (kHasCpu<T>) return on_cpu(0);
    fail("the CPU back end computes in fp32");
  }
  if constexpr (kHasCuda<T>) return on_cuda(q.stream);
  fail("this build has no CUDA back end for that type");
}

bool idle(const Queue&);         // everything queued has run
void synchronize(const Queue&);  // waits until everything queued has run; tests, apps and the end of a step

}  // namespace slip
