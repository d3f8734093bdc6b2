// Statistics of a tensor's values, read in pieces: a tensor may be larger than memory.
#pragma once
#include <unistd.h>

#include <chrono>

#include "apps/inspect.hpp"

namespace slip {

// One line on a terminal while much is read.
class ReadProgress {
 public:
  explicit ReadProgress(int64_t total_bytes) : total_(total_bytes) {}
  ~ReadProgress();
  void advance(int64_t bytes);

 private:
  int64_t total_, done_ = 0;
  bool terminal_ = isatty(STDERR_FILENO) != 0, shown_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), last_ = start_;
};

// mean, deviation (of the whole, not of a sample), min and max of the finite values, null where there are
// none; counts of NaN and infinities. Null in all for a dtype that is not read as numbers.
Facts tensor_statistics(const SafetensorsFile&, const TensorInfo&, ReadProgress&);

}  // namespace slip
