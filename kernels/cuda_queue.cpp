#include "kernels/cuda_queue.hpp"

#if SLIP_HAVE_CUDA
#include "device/cuda.hpp"
#include "kernels/blas.hpp"
#endif

namespace slip {
#if SLIP_HAVE_CUDA

struct CudaQueue::State {
  Stream stream;
  Blas blas;
};
void CudaQueue::Closer::operator()(State* s) const noexcept { delete s; }

int cuda_device_count() {
  int count = 0;
  const cudaError_t rc = cudaGetDeviceCount(&count);
  if (rc == cudaErrorNoDevice || rc == cudaErrorInsufficientDriver) {
    cudaGetLastError();  // it is remembered, and the next check would meet it
    return 0;
  }
  check(rc);
  return count;
}

std::string cuda_device_name(int device) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device));
  return properties.name;
}

CudaCapability cuda_capability(int device) {
  CudaCapability c;
  check(cudaDeviceGetAttribute(&c.major, cudaDevAttrComputeCapabilityMajor, device));
  check(cudaDeviceGetAttribute(&c.minor, cudaDevAttrComputeCapabilityMinor, device));
  return c;
}

CudaQueue::CudaQueue(int device) {
  const int count = cuda_device_count();
  if (device < 0 || device >= count) {
    fail("CUDA device " + std::to_string(device) + " was asked for; this process sees " +
         std::to_string(count));
  }
  check(cudaSetDevice(device));
  state_.reset(new State{make_stream(), make_blas()});
}

Queue CudaQueue::queue() const { return {Device::cuda, state_->stream.get(), state_->blas.get()}; }

#else

struct CudaQueue::State {};
void CudaQueue::Closer::operator()(State* s) const noexcept { delete s; }
int cuda_device_count() { return 0; }
std::string cuda_device_name(int) { fail("this build has no CUDA back end"); }
CudaCapability cuda_capability(int) { fail("this build has no CUDA back end"); }
CudaQueue::CudaQueue(int) { fail("this build has no CUDA back end"); }
Queue CudaQueue::queue() const { fail("this build has no CUDA back end"); }

#endif
}  // namespace slip
