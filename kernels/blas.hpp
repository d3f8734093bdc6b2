// What matrix products on a GPU keep between calls: a cuBLASLt handle, a workspace and the algorithm chosen
// for every shape met. One per stream: two products that run side by side must not share a workspace. Not for
// threads.
#pragma once
#include <cstdint>
#include <memory>

#include "device/queue.hpp"

namespace slip {

inline constexpr int64_t kBlasWorkspaceBytes = 64ll << 20;  // taken from the current device by make_blas

struct BlasCloser {
  void operator()(BlasContext*) const noexcept;
};
using Blas = std::unique_ptr<BlasContext, BlasCloser>;
Blas make_blas();                             // on the current device
int64_t blas_algorithms(const BlasContext&);  // how many shapes have met their algorithm

}  // namespace slip
