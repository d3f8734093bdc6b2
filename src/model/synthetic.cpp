#include "model/synthetic.hpp"

#include "core/random.hpp"
#include "kernels/fill.hpp"

namespace slip {
namespace {
constexpr float kTargetSigma = 0.02f;  // initializer_range of the published configurations
}

template <class T>
View2<T> synthetic_matrix(const std::string& name, int64_t rows, int64_t cols, float sigma, uint64_t seed,
                          Arena& arena, const Queue& queue) {
  const View2<T> m = arena.take2<T>(name, rows, cols);
  if (!arena.measuring()) fill_random<T>({m.data, rows * cols, 0, sigma, seed, fnv1a64(name)}, queue);
  return m;
}

template <class T>
TargetWeights<T> synthetic_target(const TargetModel& m, const TargetParts& parts, uint64_t seed, Arena& arena,
                                  const Queue& queue) {
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols) {
    return View2<const T>(
        synthetic_matrix<T>("target." + name, rows, cols, kTargetSigma, seed, arena, queue));
  };
  const auto ones = [&](const std::string& name, int64_t count) {
    T* v = arena.take<T>("target." + name, count);
    if (!arena.measuring()) fill_random<T>({v, count, 1, 0, 0, 0}, queue);
    return static_cast<const T*>(v);
  };
  TargetWeights<T> w;
  w.embed = matrix("embed", m.vocab, m.hidden);
  for (int64_t l = 0; l < parts.layers; ++l) {
    const std::string p = "layers." + std::to_string(l) + ".";
    typename TargetWeights<T>::Layer layer;
    layer.input_norm = ones(p + "input_norm", m.hidden);
    layer.post_norm = ones(p + "post_norm", m.hidden);
    layer.q_norm = m.qk_norm ? ones(p + "q_norm", m.head_dim) : nullptr;
    layer.k_norm = m.qk_norm ? ones(p + "k_norm", m.head_dim) : nullptr;
    layer.qkv = matrix(p + "qkv", q + 2 * kv, m.hidden);
    layer.o = matrix(p + "o", m.hidden, q);
    layer.gate_up = matrix(p + "gate_up", 2 * m.intermediate, m.hidden);
    layer.down = matrix(p + "down", m.hidden, m.intermediate);
    w.layers.push_back(layer);
  }
  if (parts.head) w.head = m.tied ? w.embed : matrix("head", m.vocab, m.hidden);
  if (parts.norm) w.norm = ones("norm", m.hidden);
  return w;
}

template <class T> void synthetic_weights(Drafter<T>& d, uint64_t seed, const Queue& queue) {
  for (const ParameterLayout::Entry& e : d.layout.entries) {
    const bool norm = e.shape.size() == 1;
    fill_random<T>({d.weights + e.offset, e.count, norm ? 1.0f : 0.0f,
                    norm ? 0.0f : static_cast<float>(d.model.initializer_range), seed, fnv1a64(e.name)},
                   queue);
  }
}

#define SLIP_INSTANTIATE(T)                                                                            \
  template View2<T> synthetic_matrix(const std::string&, int64_t, int64_t, float, uint64_t, Arena&,    \
                                     const Queue&);                                                    \
  template TargetWeights<T> synthetic_target(const TargetModel&, const TargetParts&, uint64_t, Arena&, \
                                             const Queue&);                                            \
  template void synthetic_weights(Drafter<T>&, uint64_t, const Queue&);
SLIP_INSTANTIATE(float)
template void synthetic_weights(Drafter<double>&, uint64_t, const Queue&);
#if SLIP_HAVE_CUDA
SLIP_INSTANTIATE(Bf16)
#endif

}  // namespace slip
