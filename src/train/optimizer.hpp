// AdamW over all parameters of a drafter, with fp32 masters and moments and one global norm.
#pragma once
#include <vector>

#include "core/config.hpp"
#include "model/drafter.hpp"

namespace slip {

template <class T> struct Optimizer {
  Acc<T>*master, *m, *v;  // (count) each
  double *sum, *scratch;  // of the norm
  int64_t updates = 0;    // made so far
  bool round_weight;      // train.precision=bf16 or fp8 on the CPU
};
template <class T> Optimizer<T> make_optimizer(const Drafter<T>&, const TrainConfig&, Arena&, const Queue&);

// Starts from bf16-representable values; moments are zero.
template <class T> void set_masters(Optimizer<T>&, Drafter<T>&, const std::vector<float>& flat, const Queue&);

// Masters and weights of a new drafter, made where the queue's memory is (dflash.md 1.7): matrices
// N(0, initializer_range^2) rounded to bf16, by counter-based numbers of (seed, name, index); norms 1.
template <class T> void new_masters(Optimizer<T>&, Drafter<T>&, uint64_t seed, const Queue&);

// Global L2 norm of gradients / denominator.
template <class T> double gradient_norm(Optimizer<T>&, const Drafter<T>&, double denominator, const Queue&);
// One update with gradients / denominator, clipped: coefficient min(1, clip / (norm + 1e-6)).
template <class T>
void optimizer_step(Optimizer<T>&, Drafter<T>&, const TrainConfig&, double lr, double denominator,
                    double norm, const Queue&);

}  // namespace slip
