// FLOPs of a row on each side; the formulas are in plan.hpp.
#include <algorithm>

#include "kernels/gated_delta.hpp"
#include "launch/plan.hpp"

namespace slip {
namespace {

// Multiply-adds of one token in the products of one transformer layer; both models have this layer.
template <class Model> double layer_products(const Model& m) {
  const auto h = static_cast<double>(m.hidden), d = static_cast<double>(m.head_dim);
  const auto q = static_cast<double>(m.heads) * d, kv = static_cast<double>(m.kv_heads) * d;
  return h * (q + 2 * kv) + q * h + 3 * h * static_cast<double>(m.intermediate);
}

double document_tokens(const RowShape& row) {
  return static_cast<double>(row.tokens) / static_cast<double>(std::max<int64_t>(1, row.documents));
}

}  // namespace

double gated_delta_flops(const DeltaNetConfig& d) {
  const auto k = static_cast<double>(d.key_dim), v = static_cast<double>(d.value_dim);
  const double chunk = kDeltaChunk;
  return 2 * static_cast<double>(d.value_heads) * (chunk * (k + 2 * v) + 3 * k * v) +
         4 * static_cast<double>(d.key_heads) * chunk * k;
}

double target_row_flops(const TargetModel& m, int64_t last_tap, const RowShape& row) {
  const auto h = static_cast<double>(m.hidden), q = static_cast<double>(m.heads * m.head_dim);
  const double full =
      2 * layer_products(m) + 2 * q * document_tokens(row) + (m.attention_gate ? 2 * h * q : 0);
  const DeltaNetConfig& d = m.delta;
  const auto in = static_cast<double>(d.channels() + d.values() + 2 * d.value_heads),
             out = static_cast<double>(d.values());
  const double linear =
      2 * (h * in + out * h + 3 * h * static_cast<double>(m.intermediate)) + gated_delta_flops(d);
  double token = 0;
  for (int64_t l = 0; l <= last_tap; ++l) token += m.is_linear(l) ? linear : full;
  return static_cast<double>(row.tokens) * token;
}

double drafter_row_flops(const DrafterModel& m, const RowShape& row) {
  const auto h = static_cast<double>(m.hidden), layers = static_cast<double>(m.layers);
  const auto block = static_cast<double>(m.block), blocks = static_cast<double>(row.blocks);
  const double fc = 2 * static_cast<double>(m.taps.size()) * h * h;
  const double kv = layers * 2 * h * 2 * static_cast<double>(m.kv_heads * m.head_dim);
  const double context = static_cast<double>(row.tokens) * (2 * fc + 3 * kv);
  const double products = 3 * blocks * block * layers * 2 * layer_products(m);

  const double length = document_tokens(row), window = static_cast<double>(m.window);
  double attention = 0;
  for (const bool sliding : m.sliding) {
    const bool cut = sliding && window < length;
    const double keys = block + (cut ? window - window * window / (2 * length) : length / 2);
    attention += 3.5 * blocks * block * keys * 4 * static_cast<double>(m.heads * m.head_dim);
  }
  const double head = 2 * blocks * (block - 1) * 2 * h * static_cast<double>(m.vocab);
  return context + products + attention + head;
}

}  // namespace slip
