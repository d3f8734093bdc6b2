#include "launch/gradient_sum.hpp"

#include "comm/collectives.hpp"

namespace slip {

template <class T>
GradientSum<T>::GradientSum(const Drafter<T>& drafter, const Ranks& ranks, double timeout_s,
                            const Queue& queue)
    : drafter_(drafter), ranks_(ranks), timeout_s_(timeout_s), queue_(queue) {
  int64_t end = drafter.layout.count;
  for (int64_t l = drafter.model.layers; l-- > 0;) {
    const int64_t begin = drafter.layout.at("layers." + std::to_string(l) + ".input_layernorm.weight").offset;
    parts_.push_back({begin, end - begin});
    end = begin;
  }
  parts_.push_back({0, end});  // fc, the norms, and the keys and values of all layers
#if SLIP_HAVE_CUDA
  if (ranks.gradients) stream_ = make_stream(), ready_ = make_event(), done_ = make_event();
#endif
}

template <class T> void GradientSum<T>::start(const Part& part) {
#if SLIP_HAVE_CUDA
  if (!ranks_.gradients) return;
  check(cudaEventRecord(ready_.get(), queue_.stream));
  check(cudaStreamWaitEvent(stream_.get(), ready_.get()));
  allreduce_sum(*ranks_.gradients, drafter_.grads + part.offset, part.count, stream_.get(),
                deadline_in(timeout_s_));
#else
  (void)part;
#endif
}

template <class T> void GradientSum<T>::layer_ready(int64_t layer) {
#if SLIP_HAVE_CUDA
  if (!ranks_.gradients) return;
#else
  return;
#endif
  require(static_cast<int64_t>(next_) == drafter_.model.layers - 1 - layer,
          "GradientSum: layers must come in descending order");
  start(parts_[next_++]);
}

template <class T> void GradientSum<T>::finish() {
  const Deadline deadline = deadline_in(timeout_s_);
  constexpr const char* kWhat = "the gradients of a step";
#if SLIP_HAVE_CUDA
  if (ranks_.gradients) {
    while (next_ < parts_.size()) start(parts_[next_++]);
    next_ = 0;
    check(cudaEventRecord(done_.get(), stream_.get()));
    ranks_.gradients->wait(done_, deadline, kWhat);  // bounded here; the queue need not wait any more
    return;
  }
#endif
  if (ranks_.drafter_count() == 1) return;
  const int64_t n = drafter_.layout.count, bytes = n * static_cast<int64_t>(sizeof(Acc<T>));
  if (queue_.on_cpu())
    return allreduce_sum(ranks_.drafters, std::span(drafter_.grads, static_cast<size_t>(n)), deadline, kWhat);
  host_.resize(static_cast<size_t>(n));  // drafters that share a GPU: through host memory
  copy_to_host(host_.data(), drafter_.grads, bytes, queue_);
  synchronize(queue_);
  allreduce_sum(ranks_.drafters, std::span(host_), deadline, kWhat);
  copy_to_device(drafter_.grads, host_.data(), bytes, queue_);
  synchronize(queue_);
}

template class GradientSum<float>;
#if SLIP_HAVE_CUDA
template class GradientSum<Bf16>;
#endif

}  // namespace slip
