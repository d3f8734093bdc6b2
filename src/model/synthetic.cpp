#include "model/synthetic.hpp"

#include "core/random.hpp"
#include "kernels/fill.hpp"

namespace slip {
namespace {
constexpr float kTargetSigma = 0.02f;  // initializer_range of the published configurations
constexpr float kConvSigma = 0.3f;     // of a depthwise convolution of four taps
}  // namespace

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
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols, float sigma = kTargetSigma) {
    return View2<const T>(synthetic_matrix<T>("target." + name, rows, cols, sigma, seed, arena, queue));
  };
  const auto vector = [&]<class V>(const V*& at, const std::string& name, int64_t count, float mean,
                                   float sigma) {
    V* v = arena.take<V>("target." + name, count);
    if (!arena.measuring()) fill_random<V>({v, count, mean, sigma, seed, fnv1a64(name)}, queue);
    at = v;
  };
  const float one = m.centred_norms ? 0.0f : 1.0f;
  TargetWeights<T> w;
  w.embed = matrix("embed", m.vocab, m.hidden);
  for (int64_t l = 0; l < parts.layers; ++l) {
    const std::string p = "layers." + std::to_string(l) + ".";
    typename TargetWeights<T>::Layer layer;
    vector(layer.input_norm, p + "input_norm", m.hidden, one, 0);
    vector(layer.post_norm, p + "post_norm", m.hidden, one, 0);
    if (m.is_linear(l)) {
      const DeltaNetConfig& d = m.delta;
      layer.in = matrix(p + "in", delta_columns(m), m.hidden);
      layer.conv = matrix(p + "conv", d.channels(), d.taps, kConvSigma).data;
      // Decays of the order of published ones: half-lives from a few tokens to thousands.
      vector(layer.a_log, p + "a_log", d.value_heads, 0, 1);
      vector(layer.dt_bias, p + "dt_bias", d.value_heads, -4, 1);
      vector(layer.gated_norm, p + "gated_norm", d.value_dim, 1, 0);
      layer.o = matrix(p + "o", m.hidden, d.values());
    } else {
      if (m.qk_norm) vector(layer.q_norm, p + "q_norm", m.head_dim, one, 0);
      if (m.qk_norm) vector(layer.k_norm, p + "k_norm", m.head_dim, one, 0);
      layer.in = matrix(p + "in", attention_columns(m), m.hidden);
      layer.o = matrix(p + "o", m.hidden, m.heads * m.head_dim);
    }
    layer.gate_up = matrix(p + "gate_up", 2 * m.intermediate, m.hidden);
    layer.down = matrix(p + "down", m.hidden, m.intermediate);
    w.layers.push_back(layer);
  }
  if (parts.head) w.head = m.tied ? w.embed : matrix("head", m.vocab, m.hidden);
  if (parts.norm) vector(w.norm, "norm", m.hidden, one, 0);
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
