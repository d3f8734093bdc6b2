// Reading a target by the names of its checkpoint: target-models.md 4.2, 6.2, 9.4.
#include <fmt/format.h>

#include <set>

#include "core/progress.hpp"
#include "model/target.hpp"
#include "model/weights.hpp"

namespace slip {
namespace {

// Calls f(name, shape) for every tensor of a layer; `prefix` ends with the number and a dot.
template <class F> void for_layer_tensors(const TargetModel& m, int64_t l, const std::string& prefix, F&& f) {
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  const auto g = [&](const char* name, const std::vector<int64_t>& shape) { f(prefix + name, shape); };
  g("input_layernorm.weight", {m.hidden});
  if (m.is_linear(l)) {
    const DeltaNetConfig& d = m.delta;
    g("linear_attn.in_proj_qkv.weight", {d.channels(), m.hidden});
    g("linear_attn.in_proj_z.weight", {d.values(), m.hidden});
    g("linear_attn.in_proj_b.weight", {d.value_heads, m.hidden});
    g("linear_attn.in_proj_a.weight", {d.value_heads, m.hidden});
    g("linear_attn.conv1d.weight", {d.channels(), 1, d.taps});
    g("linear_attn.A_log", {d.value_heads});
    g("linear_attn.dt_bias", {d.value_heads});
    g("linear_attn.norm.weight", {d.value_dim});
    g("linear_attn.out_proj.weight", {m.hidden, d.values()});
  } else {
    g("self_attn.q_proj.weight", {m.attention_gate ? 2 * q : q, m.hidden});
    g("self_attn.k_proj.weight", {kv, m.hidden});
    g("self_attn.v_proj.weight", {kv, m.hidden});
    g("self_attn.o_proj.weight", {m.hidden, q});
    if (m.qk_norm) g("self_attn.q_norm.weight", {m.head_dim});
    if (m.qk_norm) g("self_attn.k_norm.weight", {m.head_dim});
  }
  g("post_attention_layernorm.weight", {m.hidden});
  g("mlp.gate_proj.weight", {m.intermediate, m.hidden});
  g("mlp.up_proj.weight", {m.intermediate, m.hidden});
  g("mlp.down_proj.weight", {m.hidden, m.intermediate});
}

std::string layer_name(const std::string& prefix, int64_t l, const char* rest) {
  return prefix + "layers." + std::to_string(l) + "." + rest;
}

// The vision tower and the multi-token-prediction layers are known and passed over. What else a layer holds
// would change what it computes.
void refuse_unknown(const TargetModel& m, const WeightFolder& folder, const std::string& prefix) {
  std::set<std::string> known;
  for (int64_t l = 0; l < m.layers; ++l) {
    for_layer_tensors(m, l, layer_name(prefix, l, ""),
                      [&](const std::string& name, const std::vector<int64_t>&) { known.insert(name); });
  }
  for (const std::string& name : folder.names()) {
    if (name.starts_with(prefix + "layers.") && !known.contains(name)) {
      fail_input(
          fmt::format("{}: tensor {} belongs to no {} layer that its config.json describes; supported: dense "
                      "BF16, F16 or "
                      "F32 layers of {} layers, vision and mtp tensors are passed over",
                      folder.folder(), name, m.model_type, m.layers));
    }
  }
}

}  // namespace

void check_target_tensors(const TargetModel& m, const WeightFolder& folder, const TargetParts& parts) {
  const std::string prefix = layer_prefix(folder);
  const auto need = [&](const std::string& name, const std::vector<int64_t>& shape) {
    folder.need(name, shape);
  };
  need(embedding_name(folder), {m.vocab, m.hidden});
  for (int64_t l = 0; l < parts.layers; ++l) for_layer_tensors(m, l, layer_name(prefix, l, ""), need);
  if (parts.head && !m.tied) need("lm_head.weight", {m.vocab, m.hidden});
  if (parts.norm) need(prefix + "norm.weight", {m.hidden});
  if (!m.linear.empty()) refuse_unknown(m, folder, prefix);
}

template <class T>
TargetWeights<T> load_target(const TargetModel& m, const WeightFolder& folder, const TargetParts& parts,
                             Arena& arena, const Queue& queue, const LoadHooks& hooks) {
  check_target_tensors(m, folder, parts);
  const std::string prefix = layer_prefix(folder);
  WeightReader<T> reader(folder, queue, arena.measuring(), hooks);
  WeightReader<float> floats(folder, queue, arena.measuring(), hooks);
  const auto rows_of = [&](const std::string& name) { return folder.find(name)->shape[0]; };
  // Tensors one below the other from row `first` on; returns the row after them.
  const auto read_below = [&](View2<T> all, int64_t first, const std::vector<std::string>& names) {
    for (const std::string& n : names) {
      reader.read(n, all.rows_from(first, rows_of(n)));
      first += rows_of(n);
    }
    return first;
  };
  const auto stack = [&](const std::string& name, const std::vector<std::string>& names, int64_t cols) {
    int64_t rows = 0;
    for (const std::string& n : names) rows += rows_of(n);
    const View2<T> all = arena.take2<T>("target." + name, rows, cols);
    read_below(all, 0, names);
    return View2<const T>(all);
  };
  const auto vector = [&]<class V>(WeightReader<V>& from, const std::string& name) {
    const int64_t count = folder.find(name)->count();
    V* v = arena.take<V>("target." + name, count);
    from.read(name, View2<V>(v, 1, count));
    return static_cast<const V*>(v);
  };
  TargetWeights<T> w;
  w.embed = stack("embed", {embedding_name(folder)}, m.hidden);
  Progress progress("weights of " + folder.folder(), static_cast<double>(parts.layers), "layers");
  for (int64_t l = 0; l < parts.layers; ++l) {
    const auto n = [&](const char* rest) { return layer_name(prefix, l, rest); };
    const std::string place = "layers." + std::to_string(l) + ".";
    typename TargetWeights<T>::Layer layer;
    layer.input_norm = vector(reader, n("input_layernorm.weight"));
    layer.post_norm = vector(reader, n("post_attention_layernorm.weight"));
    if (m.is_linear(l)) {
      const View2<T> in = arena.take2<T>("target." + place + "in", delta_columns(m), m.hidden);
      const int64_t end = read_below(in, 0,
                                     {n("linear_attn.in_proj_qkv.weight"), n("linear_attn.in_proj_z.weight"),
                                      n("linear_attn.in_proj_b.weight"), n("linear_attn.in_proj_a.weight")});
      if (!arena.measuring() && end < in.rows)
        zero(in.row(end), (in.rows - end) * in.cols * static_cast<int64_t>(sizeof(T)), queue);
      layer.in = in;
      layer.conv = vector(reader, n("linear_attn.conv1d.weight"));
      layer.a_log = vector(floats, n("linear_attn.A_log"));
      layer.dt_bias = vector(floats, n("linear_attn.dt_bias"));
      layer.gated_norm = vector(floats, n("linear_attn.norm.weight"));
      layer.o = stack(place + "o", {n("linear_attn.out_proj.weight")}, m.delta.values());
    } else {
      const int64_t q = m.heads * m.head_dim;
      layer.q_norm = m.qk_norm ? vector(reader, n("self_attn.q_norm.weight")) : nullptr;
      layer.k_norm = m.qk_norm ? vector(reader, n("self_attn.k_norm.weight")) : nullptr;
      const View2<T> in = arena.take2<T>("target." + place + "in", attention_columns(m), m.hidden);
      if (m.attention_gate) {
        reader.read_halves(n("self_attn.q_proj.weight"), m.head_dim, in.rows_from(0, q),
                           in.rows_from(in.rows - q, q));
      } else {
        read_below(in, 0, {n("self_attn.q_proj.weight")});
      }
      read_below(in, q, {n("self_attn.k_proj.weight"), n("self_attn.v_proj.weight")});
      layer.in = in;
      layer.o = stack(place + "o", {n("self_attn.o_proj.weight")}, q);
    }
    layer.gate_up = stack(place + "gate_up", {n("mlp.gate_proj.weight"), n("mlp.up_proj.weight")}, m.hidden);
    layer.down = stack(place + "down", {n("mlp.down_proj.weight")}, m.intermediate);
    w.layers.push_back(layer);
    if (!arena.measuring()) progress.add(1);
  }
  if (parts.head) w.head = m.tied ? w.embed : stack("head", {"lm_head.weight"}, m.hidden);
  if (parts.norm) w.norm = vector(reader, prefix + "norm.weight");
  reader.finish();
  floats.finish();
  return w;
}

template TargetWeights<float> load_target(const TargetModel&, const WeightFolder&, const TargetParts&, Arena&,
                                          const Queue&, const LoadHooks&);
#if SLIP_HAVE_CUDA
template TargetWeights<Bf16> load_target(const TargetModel&, const WeightFolder&, const TargetParts&, Arena&,
                                         const Queue&, const LoadHooks&);
#endif

}  // namespace slip
