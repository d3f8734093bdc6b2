// Named allocations and the memory table. Everything a rank needs is taken by name before its first step; a
// step allocates nothing. With `measure` the arena hands out an address that must not be read or written and
// only keeps the table: `plan` uses it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "device/buffer.hpp"
#include "device/view.hpp"

namespace slip {

class Arena {
 public:
  enum class Mode { take, measure };
  explicit Arena(Device device, Mode mode = Mode::take) : device_(device), mode_(mode) {}

  // `key` names the configuration key that makes this smaller; it is shown when memory does not suffice.
  template <class T> T* take(const std::string& name, int64_t count, const char* key = "") {
    return static_cast<T*>(take_bytes(name, count * static_cast<int64_t>(sizeof(T)), key));
  }
  template <class T>
  View2<T> take2(const std::string& name, int64_t rows, int64_t cols, const char* key = "") {
    return {take<T>(name, rows * cols, key), rows, cols};
  }
  bool measuring() const { return mode_ == Mode::measure; }
  int64_t total_bytes() const { return total_; }
  // One line a name, largest first, and the sum. The names after the first `most` share one line; 0: all get
  // their own.
  std::string table(int64_t most = 0) const;

  struct Entry {
    std::string name;
    int64_t bytes;
  };
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  void* take_bytes(const std::string& name, int64_t bytes, const char* key);

  Device device_;
  Mode mode_;
  std::vector<Buffer> buffers_;
  std::vector<Entry> entries_;
  int64_t total_ = 0;
};

}  // namespace slip
