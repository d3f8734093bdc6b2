// Owning memory: host (64-byte aligned), pinned host, or device. Taken once, before the first step.
#pragma once
#include <cstdint>
#include <memory>

#include "device/queue.hpp"

namespace slip {

enum class Place { host, pinned, device };

class Buffer {
 public:
  Buffer() = default;
  Buffer(Place place, int64_t bytes);  // zeroed; throws when there is not so much
  void* data() const { return data_.get(); }
  template <class T> T* as() const { return static_cast<T*>(data_.get()); }
  int64_t bytes() const { return bytes_; }
  Place place() const { return data_.get_deleter().place; }

 private:
  struct Free {
    Place place;
    Free() : Free(Place::host) {}  // not an initialiser: those are unknown until Buffer is complete
    explicit Free(Place p) : place(p) {}
    void operator()(void* p) const noexcept;
  };
  std::unique_ptr<void, Free> data_;
  int64_t bytes_ = 0;
};

int64_t host_bytes_available();  // that could be taken without swapping; 0: unknown

// Copies and fills in queue order. On a CUDA queue `device` memory is device memory and copies are
// asynchronous: the host side must stay until the queue has passed it.
void copy_to_device(void* device, const void* host, int64_t bytes, const Queue&);
void copy_to_host(void* host, const void* device, int64_t bytes, const Queue&);
// `rows` rows of `bytes` bytes, `host_stride` and `device_stride` bytes apart.
void copy_rows_to_host(void* host, int64_t host_stride, const void* device, int64_t device_stride,
                       int64_t bytes, int64_t rows, const Queue&);
void copy_on_device(void* to, const void* from, int64_t bytes, const Queue&);
void zero(void* device, int64_t bytes, const Queue&);

}  // namespace slip
