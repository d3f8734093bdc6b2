#include "device/buffer.hpp"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#if SLIP_HAVE_CUDA
#include <cuda_runtime.h>

#include "device/cuda.hpp"
#endif

namespace slip {

Buffer::Buffer(Place place, int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* p = nullptr;
  if (place == Place::host) {
    const size_t rounded = (static_cast<size_t>(bytes) + 63) / 64 * 64;  // aligned_alloc wants a multiple
    p = std::aligned_alloc(64, rounded);
    if (p == nullptr) fail("no host memory for " + std::to_string(bytes) + " bytes");
    std::memset(p, 0, rounded);
  } else {
#if SLIP_HAVE_CUDA
    if (place == Place::pinned) {
      check(cudaMallocHost(&p, static_cast<size_t>(bytes)));
      std::memset(p, 0, static_cast<size_t>(bytes));
    } else {
      check(cudaMalloc(&p, static_cast<size_t>(bytes)));
      check(cudaMemset(p, 0, static_cast<size_t>(bytes)));
      // The fill runs on the legacy stream, which our streams do not wait for: it must not overtake their
      // writes.
      check(cudaStreamSynchronize(nullptr));
    }
#else
    fail("this build has no CUDA back end");
#endif
  }
  data_ = std::unique_ptr<void, Free>(p, Free{place});
}

int64_t host_bytes_available() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  int64_t kib = 0;
  for (std::string unit; file >> name >> kib; std::getline(file, unit)) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

void Buffer::Free::operator()(void* p) const noexcept {
#if SLIP_HAVE_CUDA
  if (place == Place::device) return warn_unless_ok(cudaFree(p));
  if (place == Place::pinned) return warn_unless_ok(cudaFreeHost(p));
#endif
  std::free(p);
}

namespace {
void copy_rows(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t bytes,
               int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(static_cast<char*>(to) + r * to_stride, static_cast<const char*>(from) + r * from_stride,
                static_cast<size_t>(bytes));
  }
}
}  // namespace

#if SLIP_HAVE_CUDA
namespace {
void copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, const Queue& q) {
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, q.stream));
}
}  // namespace
void copy_to_device(void* device, const void* host, int64_t bytes, const Queue& q) {
  if (bytes == 0) return;
  if (q.on_cpu()) return void(std::memcpy(device, host, static_cast<size_t>(bytes)));
  copy(device, host, bytes, cudaMemcpyHostToDevice, q);
}
void copy_to_host(void* host, const void* device, int64_t bytes, const Queue& q) {
  if (bytes == 0) return;
  if (q.on_cpu()) return void(std::memcpy(host, device, static_cast<size_t>(bytes)));
  copy(host, device, bytes, cudaMemcpyDeviceToHost, q);
}
void copy_rows_to_host(void* host, int64_t host_stride, const void* device, int64_t device_stride,
                       int64_t bytes, int64_t rows, const Queue& q) {
  if (q.on_cpu()) return copy_rows(host, host_stride, device, device_stride, bytes, rows);
  check(cudaMemcpy2DAsync(host, static_cast<size_t>(host_stride), device, static_cast<size_t>(device_stride),
                          static_cast<size_t>(bytes), static_cast<size_t>(rows), cudaMemcpyDeviceToHost,
                          q.stream));
}
void copy_on_device(void* to, const void* from, int64_t bytes, const Queue& q) {
  if (bytes == 0) return;
  if (q.on_cpu()) return void(std::memcpy(to, from, static_cast<size_t>(bytes)));
  copy(to, from, bytes, cudaMemcpyDeviceToDevice, q);
}
void zero(void* device, int64_t bytes, const Queue& q) {
  if (bytes == 0) return;
  if (q.on_cpu()) return void(std::memset(device, 0, static_cast<size_t>(bytes)));
  check(cudaMemsetAsync(device, 0, static_cast<size_t>(bytes), q.stream));
}
bool idle(const Queue& q) {
  if (q.on_cpu()) return true;
  const cudaError_t rc = cudaStreamQuery(q.stream);
  if (rc == cudaErrorNotReady) return false;
  check(rc);
  return true;
}
void synchronize(const Queue& q) {
  if (!q.on_cpu()) check(cudaStreamSynchronize(q.stream));
}
#else
void copy_to_device(void* device, const void* host, int64_t bytes, const Queue&) {
  if (bytes > 0) std::memcpy(device, host, static_cast<size_t>(bytes));
}
void copy_to_host(void* host, const void* device, int64_t bytes, const Queue&) {
  if (bytes > 0) std::memcpy(host, device, static_cast<size_t>(bytes));
}
void copy_rows_to_host(void* host, int64_t host_stride, const void* device, int64_t device_stride,
                       int64_t bytes, int64_t rows, const Queue&) {
  copy_rows(host, host_stride, device, device_stride, bytes, rows);
}
void copy_on_device(void* to, const void* from, int64_t bytes, const Queue&) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}
void zero(void* device, int64_t bytes, const Queue&) {
  if (bytes > 0) std::memset(device, 0, static_cast<size_t>(bytes));
}
bool idle(const Queue&) { return true; }
void synchronize(const Queue&) {}
#endif

}  // namespace slip
