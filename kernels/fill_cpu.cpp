#include "core/random.hpp"
#include "kernels/fill.hpp"

namespace slip {

template <class T> void fill_random_cpu(const FillRandom<T>& a) {
  for (int64_t i = 0; i < a.count; ++i) {
    const float noise = a.sigma == 0 ? 0 : a.sigma * random_normal(a.seed, a.name, static_cast<uint64_t>(i));
    a.out[i] = from_float<T>(round_bf16(a.mean + noise));
  }
}

template void fill_random_cpu(const FillRandom<float>&);
template void fill_random_cpu(const FillRandom<double>&);
template void fill_random_cpu(const FillRandom<Bf16>&);

}  // namespace slip
