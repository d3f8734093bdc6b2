// The sum of the gradients over the drafters, in fp32. On GPUs of their own it runs part by part on a stream
// beside the backward pass: a part (drafter.hpp, gradient_parts) starts when its gradients are final. Every
// drafter sums the same parts in the same order, whether it has rows in this step or not.
//
// NCCL gets few thread blocks (comm.sum_blocks), and from the start of a part to the end of its layer the
// kernels beside it leave as many multiprocessors free: kernels of one block a multiprocessor would else take
// longer by those that find no room. The parts that the context completes come last, with little left beside
// them: those have more blocks. The squares of a part's sum, for the norm, are added up behind it on a third
// stream.
#pragma once
#include <algorithm>
#include <optional>
#include <vector>

#include "device/buffer.hpp"
#include "launch/rank.hpp"
#include "model/drafter.hpp"

namespace slip {

template <class T> class GradientSum {
 public:
  // Thread blocks of the last parts, where the others have `blocks`.
  static int last_blocks(int64_t blocks) {
    return static_cast<int>(blocks == 0 ? 0 : std::max<int64_t>(blocks, 24));
  }

  GradientSum(const Drafter<T>&, const Ranks&, const CommConfig&, Arena&, const Queue&);
  // The gradients from `begin` on are queued; of 0: all, also of rows that never came. Nothing where there is
  // nothing to overlap.
  void ready(int64_t begin);

  struct Result {
    std::optional<double> squares;  // sum of the squares of all gradients, where they were added up
    // From when a part could start to its end, added up: the wait for the other drafters is in it. And what
    // of it came after the last kernel of the backward pass. On the CPU, and through host memory: all of it.
    double seconds = 0, exposed_s = 0;
  };
  Result finish();  // sums what is left; then drafter.grads holds the sum for what is queued next

 private:
  const Drafter<T>& drafter_;
  const Ranks& ranks_;
  double timeout_s_;
  Queue queue_;
  std::vector<Acc<T>> host_;
#if SLIP_HAVE_CUDA
  struct Part {
    int64_t begin, count;
    bool last;                     // of those that the context completes
    Event ready, started, summed;  // the last two keep the time
  };
  void start(size_t part);

  std::vector<Part> parts_;
  size_t next_ = 0;
  int blocks_;
  double *squares_, *scratch_;  // (parts), and of one part
  Buffer host_squares_;
  Stream stream_, squares_stream_;
  Event backward_done_, done_;
#endif
};

}  // namespace slip
