// Weights from an architecture alone, for timing without files: counter-based numbers made where the queue's
// memory is. Matrices are N(0, initializer_range^2), norms 1; a model of any size fills in milliseconds on a
// GPU.
#pragma once
#include "model/drafter.hpp"
#include "model/target.hpp"

namespace slip {

template <class T>
TargetWeights<T> synthetic_target(const TargetModel&, const TargetParts&, uint64_t seed, Arena&,
                                  const Queue&);
// What initial_parameters gives, up to the rounding of the device's logarithms.
template <class T> void synthetic_weights(Drafter<T>&, uint64_t seed, const Queue&);
// N(0, sigma^2), named for the numbers and for the arena.
template <class T>
View2<T> synthetic_matrix(const std::string& name, int64_t rows, int64_t cols, float sigma, uint64_t seed,
                          Arena&, const Queue&);

}  // namespace slip
