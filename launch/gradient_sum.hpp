// The sum of the gradients over the drafters, in fp32. On GPUs of their own it runs layer by layer on a
// stream beside the backward pass: a layer's part starts when its gradients are final. Every drafter sums the
// same parts in the same order, whether it has rows in this step or not.
#pragma once
#include <vector>

#include "launch/rank.hpp"
#include "model/drafter.hpp"

namespace slip {

template <class T> class GradientSum {
 public:
  GradientSum(const Drafter<T>&, const Ranks&, double timeout_s, const Queue&);
  // The gradients of layer l are queued; layers come in descending order. Nothing where there is nothing to
  // overlap.
  void layer_ready(int64_t layer);
  void finish();  // sums what is left; then drafter.grads holds the sum for what is queued next

 private:
  struct Part {
    int64_t offset, count;
  };
  void start(const Part&);

  const Drafter<T>& drafter_;
  const Ranks& ranks_;
  double timeout_s_;
  Queue queue_;
  std::vector<Part> parts_;  // last layer first, then what all layers share
  size_t next_ = 0;
  std::vector<Acc<T>> host_;
#if SLIP_HAVE_CUDA
  Stream stream_;
  Event ready_, done_;
#endif
};

}  // namespace slip
