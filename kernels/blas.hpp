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

// Kernels that fill the GPU with one long-lived block a multiprocessor take twice their time where another
// stream holds a few of them: the blocks that find no room start when the others end. So what is queued from
// now on leaves `count` multiprocessors free; 0: none. Products heed it, and attention is told. A queue of
// the CPU has nothing to leave.
#if SLIP_HAVE_CUDA
void leave_multiprocessors(const Queue&, int count);
int left_multiprocessors(const Queue&);
#else
inline int left_multiprocessors(const Queue&) { return 0; }
#endif

}  // namespace slip
