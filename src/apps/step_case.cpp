#include "apps/step_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/check.hpp"
#include "io/json_file.hpp"

namespace slip {
namespace {

constexpr int64_t kMaxSize = 1 << 24;  // of any size that a case states: products of two do not overflow

const TensorInfo& tensor(const SafetensorsFile& f, const std::string& name, Dtype dtype,
                         const std::vector<int64_t>& shape) {
  const TensorInfo* t = f.find(name);
  if (t == nullptr) fail_input(fmt::format("{}: no tensor {}", f.path(), name));
  if (t->dtype != dtype)
    fail_input(fmt::format("{}: {} is {}, want {}", f.path(), name, t->dtype_text, dtype_name(dtype)));
  if (t->shape != shape)
    fail_input(fmt::format("{}: {} is {}, the case says {}", f.path(), name, shape_text(t->shape),
                           shape_text(shape)));
  return *t;
}

template <class T>
std::vector<T> values(const SafetensorsFile& f, const std::string& name, Dtype dtype,
                      const std::vector<int64_t>& shape) {
  const TensorInfo& t = tensor(f, name, dtype, shape);
  std::vector<T> out(static_cast<size_t>(t.count()));
  f.read(t, out.data());
  return out;
}

std::vector<float> bf16_values(const SafetensorsFile& f, const std::string& name,
                               const std::vector<int64_t>& shape) {
  const std::vector<Bf16> bits = values<Bf16>(f, name, Dtype::bf16, shape);
  std::vector<float> out(bits.size());
  std::transform(bits.begin(), bits.end(), out.begin(), [](Bf16 b) { return to_float(b); });
  return out;
}

// A key that the case leaves out, or gives as null, has its default.
template <class V> V value_or(const nlohmann::json& j, const char* key, V otherwise) {
  const auto at = j.find(key);
  return at == j.end() || at->is_null() ? otherwise : at->get<V>();
}

}  // namespace

StepCase read_step_case(const SafetensorsFile& f) {
  const auto text = f.metadata().find("case");
  if (text == f.metadata().end()) fail_input(fmt::format("{}: __metadata__ has no `case`", f.path()));
  StepCase c;
  DrafterModel& m = c.model;
  int64_t tokens = 0;
  try {
    const nlohmann::json j = nlohmann::json::parse(text->second);
    tokens = j.at("S").get<int64_t>();
    m.block = j.at("block_size").get<int64_t>();
    m.layers = j.at("num_hidden_layers").get<int64_t>();
    m.taps = j.at("target_layer_ids").get<std::vector<int64_t>>();
    m.heads = j.at("num_attention_heads").get<int64_t>();
    m.kv_heads = j.at("num_key_value_heads").get<int64_t>();
    m.head_dim = j.at("head_dim").get<int64_t>();
    m.intermediate = j.at("intermediate_size").get<int64_t>();
    m.hidden = j.at("hidden_size").get<int64_t>();
    m.vocab = j.at("vocab_size").get<int64_t>();
    m.mask_token = j.at("mask_token_id").get<int64_t>();
    m.rope.theta = j.at("rope_theta").get<double>();
    m.eps = value_or(j, "rms_norm_eps", 1e-6f);
    m.window = value_or<int64_t>(j, "sliding_window", 0);
    for (const std::string& kind : j.at("layer_types").get<std::vector<std::string>>()) {
      const bool sliding = kind == "sliding_attention";
      if (!sliding && kind != "full_attention")
        fail_input(fmt::format("{}: layer_types: '{}' is neither full_attention nor sliding_attention",
                               f.path(), kind));
      m.sliding.push_back(sliding);
      m.causal.push_back(value_or(j, "is_causal", sliding));
    }
    const std::string loss = j.at("loss_type").get<std::string>();
    if (loss != "dflash" && loss != "dpace")
      fail_input(fmt::format("{}: loss_type: '{}' is neither dflash nor dpace", f.path(), loss));
    c.rule.kind = loss == "dpace" ? LossKind::dpace : LossKind::decay;
    c.rule.gamma = value_or(j, "loss_decay_gamma", 0.0f);
    c.rule.alpha = value_or(j, "dpace_alpha", 0.5f);
    const std::string mask = j.at("label_mask").get<std::string>();
    if (mask != "prefix" && mask != "pointwise")
      fail_input(fmt::format("{}: label_mask: '{}' is neither prefix nor pointwise", f.path(), mask));
    c.label_mask = mask == "prefix" ? LabelMask::prefix : LabelMask::pointwise;
  } catch (const nlohmann::json::exception& e) {
    fail_input(fmt::format("{}: __metadata__.case: {}", f.path(), json_complaint(e)));
  }
  const auto positive = [&](const char* key, int64_t v) {
    if (v < 1 || v > kMaxSize)
      fail_input(fmt::format("{}: case: {} is {}, 1 to {} is expected", f.path(), key, v, kMaxSize));
  };
  positive("S", tokens), positive("block_size", m.block), positive("num_hidden_layers", m.layers),
      positive("head_dim", m.head_dim);
  positive("num_key_value_heads", m.kv_heads), positive("num_attention_heads", m.heads),
      positive("hidden_size", m.hidden);
  positive("intermediate_size", m.intermediate), positive("vocab_size", m.vocab),
      positive("taps", static_cast<int64_t>(m.taps.size()));
  if (m.heads % m.kv_heads != 0)
    fail_input(fmt::format("{}: case: {} heads are no multiple of {} key/value heads", f.path(), m.heads,
                           m.kv_heads));
  if (m.block > kMaxBlock)
    fail_input(fmt::format("{}: case: block_size {} is above {}", f.path(), m.block, kMaxBlock));
  if (static_cast<int64_t>(m.sliding.size()) != m.layers)
    fail_input(fmt::format("{}: case: {} layer_types for {} layers", f.path(), m.sliding.size(), m.layers));
  if (m.mask_token < 0 || m.mask_token >= m.vocab)
    fail_input(
        fmt::format("{}: case: mask_token_id {} is outside 0..{}", f.path(), m.mask_token, m.vocab - 1));
  const bool any_sliding = std::find(m.sliding.begin(), m.sliding.end(), true) != m.sliding.end();
  if (any_sliding && m.window < m.block)
    fail_input(
        fmt::format("{}: case: sliding_window {} is below block_size {}", f.path(), m.window, m.block));
  const TensorInfo* anchors = f.find("in.anchors");
  if (anchors == nullptr || anchors->shape.size() != 1)
    fail_input(fmt::format("{}: no vector in.anchors", f.path()));
  c.ids = values<int32_t>(f, "in.input_ids", Dtype::i32, {tokens});
  c.mask = values<uint8_t>(f, "in.loss_mask", Dtype::u8, {tokens});
  c.anchors = values<int32_t>(f, "in.anchors", Dtype::i32, anchors->shape);
  c.features =
      values<float>(f, "in.features", Dtype::f32, {tokens, static_cast<int64_t>(m.taps.size()) * m.hidden});
  c.embed = bf16_values(f, "in.embed_tokens.weight", {m.vocab, m.hidden});
  c.head = bf16_values(f, "in.lm_head.weight", {m.vocab, m.hidden});
  for (size_t t = 0; t < c.ids.size(); ++t) {
    if (c.ids[t] < 0 || c.ids[t] >= m.vocab)
      fail_input(
          fmt::format("{}: in.input_ids[{}] is {}, outside 0..{}", f.path(), t, c.ids[t], m.vocab - 1));
  }
  for (const int a : c.anchors) {
    if (a < 0 || a >= tokens)
      fail_input(fmt::format("{}: in.anchors: {} is outside 0..{}", f.path(), a, tokens - 1));
  }
  for (const NamedShape& t : drafter_tensors(m)) tensor(f, "w." + t.name, Dtype::bf16, t.shape);
  const ParameterLayout layout = parameter_layout(m);
  c.weights.resize(static_cast<size_t>(layout.count));
  for (const ParameterLayout::Entry& e : layout.entries) {
    const std::vector<float> w = bf16_values(f, "w." + e.name, e.shape);
    std::copy(w.begin(), w.end(), c.weights.begin() + e.offset);
  }
  return c;
}

}  // namespace slip
