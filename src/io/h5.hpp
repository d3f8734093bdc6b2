// HDF5's C API with owning ids and its error stack turned into one line. Several threads may call it where
// the library is thread-safe, as the distribution's is: `require_threadsafe_h5` says so before threads start.
#pragma once
#include <hdf5.h>

#include <string>
#include <utility>

#include "core/check.hpp"

namespace slip {

// The one hand-written owner: an id and the function that closes it.
class H5Id {
 public:
  H5Id() = default;
  H5Id(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  H5Id(H5Id&& o) noexcept : id_(std::exchange(o.id_, -1)), close_(o.close_) {}
  H5Id& operator=(H5Id&& o) noexcept {
    std::swap(id_, o.id_);
    std::swap(close_, o.close_);
    return *this;
  }
  ~H5Id();
  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }

 private:
  hid_t id_ = -1;
  herr_t (*close_)(hid_t) = nullptr;
};

std::string h5_error();  // the innermost message of HDF5's error stack
void h5_quiet();         // HDF5 prints nothing itself; call once per thread
void require_threadsafe_h5();

}  // namespace slip
