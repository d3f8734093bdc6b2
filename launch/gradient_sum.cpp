#include "launch/gradient_sum.hpp"

#include <algorithm>

#include "comm/collectives.hpp"
#include "kernels/adamw.hpp"
#include "kernels/blas.hpp"

namespace slip {
namespace {
constexpr const char* kWhat = "the gradients of a step";
}

template <class T>
GradientSum<T>::GradientSum(const Drafter<T>& drafter, const Ranks& ranks, const CommConfig& c, Arena& arena,
                            const Queue& queue)
    : drafter_(drafter), ranks_(ranks), timeout_s_(c.timeout_s), queue_(queue) {
#if SLIP_HAVE_CUDA
  if (queue.on_cpu()) return;
  int64_t end = drafter.layout.count;
  const int64_t context = drafter.layout.at("layers.0.input_layernorm.weight").offset;
  for (const int64_t begin : gradient_parts(drafter.model, drafter.layout)) {
    parts_.push_back({begin, end - begin, begin < context, {}, {}, {}});
    end = begin;
  }
  squares_ = arena.take<double>("gradients.squares", static_cast<int64_t>(parts_.size()));
  scratch_ = arena.take<double>("gradients.scratch", sum_squares_scratch(queue.device));
  blocks_ = static_cast<int>(c.sum_blocks);
  if (!ranks.gradients) return;
  host_squares_ = Buffer(Place::pinned, static_cast<int64_t>(parts_.size() * sizeof(double)));
  for (Part& p : parts_)
    p.ready = make_event(), p.started = make_timed_event(), p.summed = make_timed_event();
  stream_ = make_urgent_stream(), squares_stream_ = make_urgent_stream();
  backward_done_ = make_timed_event(), done_ = make_event();
#else
  (void)arena;
#endif
}

#if SLIP_HAVE_CUDA
template <class T> void GradientSum<T>::start(size_t part) {
  const Part& p = parts_[part];
  Acc<T>* const values = drafter_.grads + p.begin;
  check(cudaEventRecord(p.ready.get(), queue_.stream));
  check(cudaStreamWaitEvent(stream_.get(), p.ready.get()));
  check(cudaEventRecord(p.started.get(), stream_.get()));
  const NcclComm& comm = p.last ? *ranks_.last_gradients : *ranks_.gradients;
  allreduce_sum(comm, values, p.count, stream_.get(), deadline_in(timeout_s_));
  check(cudaEventRecord(p.summed.get(), stream_.get()));
  check(cudaStreamWaitEvent(squares_stream_.get(), p.summed.get()));
  Queue beside = queue_;
  beside.stream = squares_stream_.get();
  sum_squares<T>({.count = p.count, .values = values, .sum = squares_ + part, .scratch = scratch_}, beside);
}
#endif

template <class T> void GradientSum<T>::ready(int64_t begin) {
#if SLIP_HAVE_CUDA
  if (!ranks_.gradients) return;
  const size_t first = next_;
  while (next_ < parts_.size() && parts_[next_].begin >= begin) start(next_++);
  // What completes no part is the end of a layer: by now the sum that began before its attention is through.
  if (next_ == first) return leave_multiprocessors(queue_, 0);
  const bool last = next_ > 0 && parts_[next_ - 1].last;
  leave_multiprocessors(queue_, last ? last_blocks(blocks_) : blocks_);
#else
  (void)begin;
#endif
}

template <class T> typename GradientSum<T>::Result GradientSum<T>::finish() {
  const Deadline deadline = deadline_in(timeout_s_);
  Result result;
#if SLIP_HAVE_CUDA
  if (ranks_.gradients) {
    check(cudaEventRecord(backward_done_.get(), queue_.stream));
    if (next_ < parts_.size()) ready(0);
    next_ = 0;
    leave_multiprocessors(queue_, 0);
    check(cudaMemcpyAsync(host_squares_.data(), squares_, parts_.size() * sizeof(double),
                          cudaMemcpyDeviceToHost, squares_stream_.get()));
    check(cudaEventRecord(done_.get(), squares_stream_.get()));
    // Bounded here; the queue need not wait any more. The last part is short, and so is then the wait's
    // pause.
    ranks_.last_gradients->wait(parts_[parts_.size() - 2].summed, deadline, kWhat);
    ranks_.last_gradients->wait(done_, deadline, kWhat);
    for (const Part& p : parts_) result.seconds += seconds_between(p.started, p.summed);
    result.exposed_s = std::max(0.0, seconds_between(backward_done_, parts_.back().summed));
    const double* squares = host_squares_.as<double>();
    result.squares = 0;
    for (size_t i = 0; i < parts_.size(); ++i) *result.squares += squares[i];
    return result;
  }
#endif
  if (ranks_.drafter_count() == 1) return result;
  const int64_t n = drafter_.layout.count, bytes = n * static_cast<int64_t>(sizeof(Acc<T>));
  synchronize(queue_);
  const Clock::time_point begin = Clock::now();
  if (queue_.on_cpu()) {
    allreduce_sum(ranks_.drafters, std::span(drafter_.grads, static_cast<size_t>(n)), deadline, kWhat);
  } else {  // drafters that share a GPU: through host memory
    host_.resize(static_cast<size_t>(n));
    copy_to_host(host_.data(), drafter_.grads, bytes, queue_);
    synchronize(queue_);
    allreduce_sum(ranks_.drafters, std::span(host_), deadline, kWhat);
    copy_to_device(drafter_.grads, host_.data(), bytes, queue_);
    synchronize(queue_);
  }
  result.seconds = result.exposed_s = seconds_since(begin);
  return result;
}

template class GradientSum<float>;
#if SLIP_HAVE_CUDA
template class GradientSum<Bf16>;
#endif

}  // namespace slip
