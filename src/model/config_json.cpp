#include "model/config_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/check.hpp"

namespace slip {

using nlohmann::json;
namespace {

constexpr int64_t kMaxLayers = 10'000;  // far above any model: a lying file must not make us fill memory

// A value as it is shown in a message.
std::string shown(const json& value) {
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= 120 ? text : text.substr(0, 117) + "...";
}

}  // namespace

const json* ConfigObject::find(const std::string& key) const {
  const auto at = keys.find(key);
  return at == keys.end() || at->is_null() ? nullptr : &*at;
}

const json& ConfigObject::need(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) {
    fail_input(fmt::format("{}: {}{} is {}", path, prefix, key,
                           keys.contains(key) ? "null; a value is expected" : "missing"));
  }
  return *value;
}

void ConfigObject::refuse(const std::string& key, const std::string& what) const {
  fail_input(fmt::format("{}: {}{} is {}; {}", path, prefix, key,
                         keys.contains(key) ? shown(keys.at(key)) : "missing", what));
}

std::optional<ConfigObject> ConfigObject::object(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) refuse(key, "an object is expected");
  return ConfigObject{path, prefix + key + ".", *value};
}

std::optional<int64_t> ConfigObject::integer(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) refuse(key, "an integer is expected");
  if (value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX}) refuse(key, "too large");
  return value->get<int64_t>();
}

int64_t ConfigObject::size(const std::string& key) const {
  need(key);
  const int64_t value = *integer(key);
  if (value < 1 || value > INT32_MAX) refuse(key, fmt::format("1 to {} is expected", INT32_MAX));
  return value;
}

std::optional<double> ConfigObject::number(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) refuse(key, "a number is expected");
  return value->get<double>();
}

double ConfigObject::positive(const std::string& key) const {
  need(key);
  const double value = *number(key);
  if (!(value > 0) || !std::isfinite(value)) refuse(key, "a number above 0 is expected");
  return value;
}

std::optional<bool> ConfigObject::boolean(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(key, "true or false is expected");
  return value->get<bool>();
}

std::optional<std::string> ConfigObject::text(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(key, "text is expected");
  return value->get<std::string>();
}

ConfigObject read_config_object(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path p(path);
  const std::string file = std::filesystem::is_directory(p, ignored) ? (p / "config.json").string() : path;
  return {file, "", read_json_file(file)};
}

void refuse_unsupported(const ConfigObject& c) {
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (c.boolean(key).value_or(false)) c.refuse(key, "supported: false");
  }
  if (c.text("hidden_act").value_or("silu") != "silu") c.refuse("hidden_act", "supported: silu");
  refuse_quantized(c);
}

void refuse_quantized(const ConfigObject& c) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (c.find(key) != nullptr)
      c.refuse(key, "quantized weights are not supported; supported: BF16, F16, F32 weights");
  }
}

RopeConfig read_rope(const ConfigObject& c, const RopeRules& rules) {
  const std::vector<std::string>& types = rules.types;
  RopeConfig rope;
  rope.partial = rules.default_partial.value_or(1);
  // Where a value was stated first, to name both places when two differ.
  std::optional<std::string> type_from, theta_from, partial_from;
  const auto state = [&](auto& field, std::optional<std::string>& from, const ConfigObject& o,
                         const char* key, const auto& value) {
    if (from && field != value) o.refuse(key, fmt::format("but {} is {}", *from, field));
    field = value;
    from = o.prefix + key;
  };
  const auto read_partial = [&](const ConfigObject& o) {
    const char* key = "partial_rotary_factor";
    const auto partial = o.number(key);
    if (!partial) return;
    if (!rules.default_partial && *partial != 1) o.refuse(key, "supported: 1 (the whole head is rotated)");
    if (!(*partial > 0) || *partial > 1) o.refuse(key, "more than 0 and at most 1 is expected");
    state(rope.partial, partial_from, o, key, *partial);
  };
  if (const auto theta = c.number("rope_theta")) state(rope.theta, theta_from, c, "rope_theta", *theta);
  read_partial(c);
  std::optional<ConfigObject> scaling;  // the object that carries llama3's numbers
  for (const char* spelling : {"rope_parameters", "rope_scaling"}) {
    const auto o = c.object(spelling);
    if (!o) continue;
    for (const auto& [key, value] : o->keys.items()) {
      if (value.is_object()) o->refuse(key, "RoPE that differs between layers is not supported");
    }
    for (const char* key : {"rope_type", "type"}) {
      const auto type = o->text(key);
      if (!type) continue;
      if (std::find(types.begin(), types.end(), *type) == types.end())
        o->refuse(key, fmt::format("supported: {}", fmt::join(types, ", ")));
      state(rope.type, type_from, *o, key, *type);
    }
    if (std::string(spelling) == "rope_scaling" && !o->find("rope_type") && !o->find("type")) {
      c.refuse(spelling, fmt::format("rope_type is missing; supported: {}", fmt::join(types, ", ")));
    }
    read_partial(*o);
    if (!rules.sections && o->find("mrope_section") != nullptr)
      o->refuse("mrope_section", "M-RoPE is not supported");
    if (const auto theta = o->number("rope_theta")) state(rope.theta, theta_from, *o, "rope_theta", *theta);
    if (rope.type == "llama3") {
      const double factor = o->positive("factor"), low = o->positive("low_freq_factor"),
                   high = o->positive("high_freq_factor");
      const int64_t original = o->size("original_max_position_embeddings");
      if (scaling && (factor != rope.factor || low != rope.low_freq_factor || high != rope.high_freq_factor ||
                      original != rope.original_max_position)) {
        c.refuse(spelling, "it differs from rope_parameters");
      }
      if (high <= low)
        o->refuse("high_freq_factor", fmt::format("more than low_freq_factor ({}) is expected", low));
      rope.factor = factor;
      rope.low_freq_factor = low;
      rope.high_freq_factor = high;
      rope.original_max_position = original;
      scaling = o;
    }
  }
  if (!theta_from)
    c.refuse("rope_theta",
             "it must stand in rope_theta or rope_parameters.rope_theta: no default is assumed");
  if (!(rope.theta > 1) || !std::isfinite(rope.theta)) {
    fail_input(fmt::format("{}: {} is {}; a number above 1 is expected", c.path, *theta_from, rope.theta));
  }
  return rope;
}

int64_t read_layers_count(const ConfigObject& c) {
  const int64_t layers = c.size("num_hidden_layers");
  if (layers > kMaxLayers) c.refuse("num_hidden_layers", fmt::format("at most {} are read", kMaxLayers));
  return layers;
}

int64_t read_kv_heads(const ConfigObject& c, int64_t heads) {
  const int64_t kv = c.find("num_key_value_heads") != nullptr ? c.size("num_key_value_heads") : heads;
  if (heads % kv != 0)
    c.refuse("num_key_value_heads", fmt::format("a divisor of num_attention_heads ({}) is expected", heads));
  return kv;
}

int64_t read_head_dim(const ConfigObject& c, int64_t hidden, int64_t heads) {
  if (c.find("head_dim") == nullptr && hidden % heads != 0) {
    c.refuse("head_dim",
             fmt::format("and hidden_size {} is no multiple of num_attention_heads {}", hidden, heads));
  }
  const int64_t dim = c.find("head_dim") != nullptr ? c.size("head_dim") : hidden / heads;
  if (dim % 2 != 0)
    fail_input(fmt::format("{}: the head dimension is {}; an even number is expected", c.path, dim));
  return dim;
}

std::vector<std::string> read_layer_types(const ConfigObject& c, int64_t layers,
                                          const std::vector<std::string>& supported) {
  const json* list = c.find("layer_types");
  if (list == nullptr) return {};
  if (!list->is_array() || static_cast<int64_t>(list->size()) != layers) {
    c.refuse("layer_types", fmt::format("a list of num_hidden_layers = {} is expected{}", layers,
                                        list->is_array() ? fmt::format(", found {}", list->size()) : ""));
  }
  std::vector<std::string> types;
  for (const json& t : *list) {
    if (!t.is_string() ||
        std::find(supported.begin(), supported.end(), t.get<std::string>()) == supported.end()) {
      c.refuse("layer_types", fmt::format("{} of layer {} is not supported; supported: {}", shown(t),
                                          types.size(), fmt::join(supported, ", ")));
    }
    types.push_back(t);
  }
  return types;
}

std::vector<double> rope_frequencies(const RopeConfig& rope, int64_t head_dim) {
  const auto rotary = static_cast<int64_t>(static_cast<double>(head_dim) * rope.partial);
  std::vector<double> f(static_cast<size_t>(rotary / 2));
  const double pi = std::acos(-1.0), original = static_cast<double>(rope.original_max_position);
  for (size_t i = 0; i < f.size(); ++i) {
    f[i] = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary));
    if (rope.type != "llama3") continue;
    const double wavelength = 2 * pi / f[i];
    if (wavelength < original / rope.high_freq_factor) continue;
    if (wavelength > original / rope.low_freq_factor) {
      f[i] /= rope.factor;
    } else {
      const double t =
          (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
      f[i] = (1 - t) * f[i] / rope.factor + t * f[i];
    }
  }
  return f;
}

}  // namespace slip
