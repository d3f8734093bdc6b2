// The specification: one token after the other, in double.
#include <cmath>

#include "kernels/gated_delta.hpp"
#include "kernels/ref.hpp"

namespace slip {

template <class T> void gated_delta_fwd_ref(const GatedDeltaFwd<T>& x) {
  require_delta_shapes(x);
  const DeltaShape& s = x.shape;
  const int dk = s.key_dim, dv = s.value_dim;
  for (int d = 0; d < x.row.document_count; ++d) {
    const DeltaDocument& doc = x.row.documents[d];
    for (int h = 0; h < s.value_heads; ++h) {
      const int key_head = h / (s.value_heads / s.key_heads);
      std::vector<std::vector<double>> state(static_cast<size_t>(dk),
                                             std::vector<double>(static_cast<size_t>(dv)));
      const int64_t first = (int64_t{d} * s.value_heads + h) * dk * dv;
      const auto each = [&](auto&& f) {
        for (int i = 0; i < dk; ++i) {
          for (int j = 0; j < dv; ++j) f(state[size_t(i)][size_t(j)], first + int64_t{i} * dv + j);
        }
      };
      if (x.state != nullptr) each([&](double& e, int64_t at) { e = static_cast<double>(x.state[at]); });
      for (int t = doc.first; t < doc.first + doc.tokens; ++t) {
        const auto q = [&](int i) { return to_double(x.q.at(t, key_head * dk + i)) / std::sqrt(dk); };
        const auto k = [&](int i) { return to_double(x.k.at(t, key_head * dk + i)); };
        const double z = to_double(x.a.at(t, h)) + x.dt_bias[h];
        const double softplus = z > 20 ? z : std::log1p(std::exp(z));
        const double decay = std::exp(-std::exp(static_cast<double>(x.a_log[h])) * softplus);
        const double beta = 1 / (1 + std::exp(-to_double(x.b.at(t, h))));
        for (auto& row : state) {
          for (double& e : row) e *= decay;
        }
        for (int j = 0; j < dv; ++j) {
          double read = 0;
          for (int i = 0; i < dk; ++i) read += state[size_t(i)][size_t(j)] * k(i);
          const double write = beta * (to_double(x.v.at(t, h * dv + j)) - read);
          double out = 0;
          for (int i = 0; i < dk; ++i) {
            state[size_t(i)][size_t(j)] += k(i) * write;
            out += state[size_t(i)][size_t(j)] * q(i);
          }
          x.out.at(t, h * dv + j) = from_double<T>(out);
        }
      }
      if (x.state_out != nullptr)
        each([&](double e, int64_t at) { x.state_out[at] = static_cast<Acc<T>>(e); });
    }
  }
}

template void gated_delta_fwd_ref(const GatedDeltaFwd<float>&);
template void gated_delta_fwd_ref(const GatedDeltaFwd<double>&);
template void gated_delta_fwd_ref(const GatedDeltaFwd<Bf16>&);

}  // namespace slip
