#include "train/optimizer.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/adamw.hpp"
#include "kernels/features.hpp"
#include "model/synthetic.hpp"

namespace slip {

template <class T>
Optimizer<T> make_optimizer(const Drafter<T>& d, const TrainConfig& c, Arena& a, const Queue& queue) {
  const int64_t n = d.layout.count;
  Optimizer<T> o;
  o.master = a.take<Acc<T>>("optimizer.master", n);
  o.m = a.take<Acc<T>>("optimizer.m", n);
  o.v = a.take<Acc<T>>("optimizer.v", n);
  o.sum = a.take<double>("optimizer.sum", 1);
  o.scratch = a.take<double>("optimizer.scratch", sum_squares_scratch(queue.device));
  o.round_weight = queue.on_cpu() && c.precision != "fp32";
  return o;
}

template <class T>
void set_masters(Optimizer<T>& o, Drafter<T>& d, const std::vector<float>& flat, const Queue& queue) {
  const int64_t bytes = d.layout.count * static_cast<int64_t>(sizeof(Acc<T>));
  const std::vector<Acc<T>> values(flat.begin(), flat.end());
  copy_to_device(o.master, values.data(), bytes, queue);
  zero(o.m, bytes, queue);
  zero(o.v, bytes, queue);
  synchronize(queue);
  set_weights(d, flat, queue);
  o.updates = 0;
}

template <class T> void new_masters(Optimizer<T>& o, Drafter<T>& d, uint64_t seed, const Queue& queue) {
  synthetic_weights(d, seed, queue);
  const int64_t bytes = d.layout.count * static_cast<int64_t>(sizeof(Acc<T>));
  // The weights are bf16 values, so the masters are the same ones.
  cast<T, T, Acc<T>>({{d.weights, 1, d.layout.count}, {o.master, 1, d.layout.count}}, queue);
  zero(o.m, bytes, queue);
  zero(o.v, bytes, queue);
  o.updates = 0;
  quantize_weights(d, queue);
}

template <class T>
double gradient_norm(Optimizer<T>& o, const Drafter<T>& d, double denominator, const Queue& queue) {
  sum_squares<T>({.count = d.layout.count, .values = d.grads, .sum = o.sum, .scratch = o.scratch}, queue);
  double sum = 0;
  copy_to_host(&sum, o.sum, sizeof sum, queue);
  synchronize(queue);
  return std::sqrt(sum) / denominator;
}

template <class T>
void optimizer_step(Optimizer<T>& o, Drafter<T>& d, const TrainConfig& c, double lr, double denominator,
                    double norm, const Queue& queue) {
  const double clip = c.clip > 0 ? std::min(1.0, c.clip / (norm + 1e-6)) : 1.0;
  ++o.updates;
  adamw<T>({.count = d.layout.count,
            .master = o.master,
            .m = o.m,
            .v = o.v,
            .grad = d.grads,
            .weight = d.weights,
            .round_weight = o.round_weight,
            .lr = static_cast<float>(lr),
            .beta1 = static_cast<float>(c.beta1),
            .beta2 = static_cast<float>(c.beta2),
            .eps = 1e-8f,
            .weight_decay = static_cast<float>(c.weight_decay),
            .grad_scale = static_cast<float>(clip / denominator),
            .step = o.updates},
           queue);
  quantize_weights(d, queue);
}

#define SLIP_INSTANTIATE(T)                                                                            \
  template Optimizer<T> make_optimizer(const Drafter<T>&, const TrainConfig&, Arena&, const Queue&);   \
  template void set_masters(Optimizer<T>&, Drafter<T>&, const std::vector<float>&, const Queue&);      \
  template void new_masters(Optimizer<T>&, Drafter<T>&, uint64_t, const Queue&);                       \
  template double gradient_norm(Optimizer<T>&, const Drafter<T>&, double, const Queue&);               \
  template void optimizer_step(Optimizer<T>&, Drafter<T>&, const TrainConfig&, double, double, double, \
                               const Queue&);
SLIP_INSTANTIATE(float)
SLIP_INSTANTIATE(double)
#if SLIP_HAVE_CUDA
SLIP_INSTANTIATE(Bf16)
#endif

}  // namespace slip
