#include <fmt/format.h>

#include <filesystem>

#include "core/check.hpp"
#include "model/config_json.hpp"

namespace slip {
namespace {

constexpr const char* kSupported = "supported: qwen3, llama, qwen3_5 (dense models)";
constexpr int64_t kMaxTaps = 8, kMaxDeltaDim = 256;  // what the kernels have room for

// What every architecture states, under the same keys.
void read_common(const ConfigObject& c, TargetModel& m) {
  m.hidden = c.size("hidden_size");
  m.intermediate = c.size("intermediate_size");
  m.layers = read_layers_count(c);
  m.heads = c.size("num_attention_heads");
  m.kv_heads = read_kv_heads(c, m.heads);
  m.head_dim = read_head_dim(c, m.hidden, m.heads);
  m.vocab = c.size("vocab_size");
  m.eps = static_cast<float>(c.positive("rms_norm_eps"));
  m.max_position = c.size("max_position_embeddings");
}

void read_dense(const ConfigObject& c, TargetModel& m) {
  refuse_unsupported(c);
  if (c.boolean("use_sliding_window").value_or(false)) c.refuse("use_sliding_window", "supported: false");
  if (c.integer("pretraining_tp").value_or(1) != 1) c.refuse("pretraining_tp", "supported: 1");
  read_common(c, m);
  read_layer_types(c, m.layers, {"full_attention"});
  m.qk_norm = m.model_type == "qwen3";
  m.tied = c.boolean("tie_word_embeddings").value_or(false);
  m.rope = read_rope(c, {.types = {"default", "llama3"}});
}

int64_t size_or(const ConfigObject& c, const char* key, int64_t otherwise, int64_t most) {
  const int64_t value = c.find(key) != nullptr ? c.size(key) : otherwise;
  if (value > most) c.refuse(key, fmt::format("supported: 1 to {}", most));
  return value;
}

DeltaNetConfig read_delta_net(const ConfigObject& c) {
  DeltaNetConfig d;
  d.key_heads = size_or(c, "linear_num_key_heads", 16, 4096);
  d.value_heads = size_or(c, "linear_num_value_heads", 32, 4096);
  if (d.value_heads % d.key_heads != 0) {
    c.refuse("linear_num_value_heads",
             fmt::format("a multiple of linear_num_key_heads ({}) is expected", d.key_heads));
  }
  d.key_dim = size_or(c, "linear_key_head_dim", 128, kMaxDeltaDim);
  d.value_dim = size_or(c, "linear_value_head_dim", 128, kMaxDeltaDim);
  d.taps = size_or(c, "linear_conv_kernel_dim", 4, kMaxTaps);
  // It names the activation of the gated norm; the gate of attention is a sigmoid in every model.
  const std::string gate = c.text("output_gate_type").value_or("silu");
  if (gate != "silu" && gate != "swish" && gate != "sigmoid")
    c.refuse("output_gate_type", "supported: silu, swish, sigmoid");
  d.sigmoid_gate = gate == "sigmoid";
  return d;
}

// The list wins over the interval: layer i is full where (i + 1) % interval == 0.
std::vector<bool> read_kinds(const ConfigObject& c, int64_t layers) {
  std::vector<bool> linear;
  for (const std::string& t : read_layer_types(c, layers, {"linear_attention", "full_attention"}))
    linear.push_back(t == "linear_attention");
  if (!linear.empty()) return linear;
  const int64_t interval = size_or(c, "full_attention_interval", 4, INT32_MAX);
  for (int64_t l = 0; l < layers; ++l) linear.push_back((l + 1) % interval != 0);
  return linear;
}

// `top` is the whole file, `c` the object with the keys of the language model: its text_config, or the same.
void read_hybrid(const ConfigObject& top, const ConfigObject& c, TargetModel& m) {
  refuse_quantized(top);
  refuse_unsupported(c);
  if (c.text("model_type").value_or("qwen3_5_text") != "qwen3_5_text" && c.prefix != "")
    c.refuse("model_type", "supported: qwen3_5_text");
  for (const char* key : {"num_experts", "num_local_experts"}) {
    if (c.integer(key).value_or(0) != 0) c.refuse(key, "experts are not supported; supported: dense layers");
  }
  if (!c.boolean("attn_output_gate").value_or(true)) c.refuse("attn_output_gate", "supported: true");
  read_common(c, m);
  m.linear = read_kinds(c, m.layers);
  m.delta = read_delta_net(c);
  m.qk_norm = m.centred_norms = m.attention_gate = true;
  const auto tied = top.boolean("tie_word_embeddings"), inner = c.boolean("tie_word_embeddings");
  if (tied && inner && *tied != *inner)
    c.refuse("tie_word_embeddings", fmt::format("but tie_word_embeddings outside it is {}", *tied));
  m.tied = tied.value_or(inner.value_or(false));
  m.rope = read_rope(c, {.types = {"default"}, .default_partial = 0.25, .sections = true});
  const auto rotary = static_cast<int64_t>(static_cast<double>(m.head_dim) * m.rope.partial);
  if (rotary < 2 || rotary % 2 != 0) {
    fail_input(
        fmt::format("{}: head_dim {} times partial_rotary_factor {} is {}; an even number from 2 is "
                    "expected",
                    c.path, m.head_dim, m.rope.partial, rotary));
  }
}

}  // namespace

TargetModel read_target_config(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) fail_input(fmt::format("{}: no such folder", folder));
  const ConfigObject c = read_config_object(folder);
  TargetModel m;
  c.need("model_type");
  m.model_type = *c.text("model_type");
  if (m.model_type == "qwen3" || m.model_type == "llama") {
    read_dense(c, m);
  } else if (m.model_type == "qwen3_5") {
    c.need("text_config");
    read_hybrid(c, *c.object("text_config"), m);
  } else if (m.model_type == "qwen3_5_text") {  // an export of the language model alone
    m.model_type = "qwen3_5";
    read_hybrid(c, c, m);
  } else {
    c.refuse("model_type", kSupported);
  }
  return m;
}

}  // namespace slip
