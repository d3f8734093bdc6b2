#include <fmt/format.h>

#include <filesystem>

#include "core/check.hpp"
#include "model/config_json.hpp"

namespace slip {

TargetModel read_target_config(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) fail_input(fmt::format("{}: no such folder", folder));
  const ConfigObject c = read_config_object(folder);
  TargetModel m;
  c.need("model_type");
  m.model_type = *c.text("model_type");
  if (m.model_type != "qwen3" && m.model_type != "llama") c.refuse("model_type", "supported: qwen3, llama");
  refuse_unsupported(c);
  if (c.boolean("use_sliding_window").value_or(false)) c.refuse("use_sliding_window", "supported: false");
  if (c.integer("pretraining_tp").value_or(1) != 1) c.refuse("pretraining_tp", "supported: 1");

  m.hidden = c.size("hidden_size");
  m.intermediate = c.size("intermediate_size");
  m.layers = read_layers_count(c);
  m.heads = c.size("num_attention_heads");
  m.kv_heads = read_kv_heads(c, m.heads);
  m.head_dim = read_head_dim(c, m.hidden, m.heads);
  m.vocab = c.size("vocab_size");
  read_layer_types(c, m.layers, {"full_attention"});
  m.eps = static_cast<float>(c.positive("rms_norm_eps"));
  m.qk_norm = m.model_type == "qwen3";
  m.tied = c.boolean("tie_word_embeddings").value_or(false);
  m.max_position = c.size("max_position_embeddings");
  m.rope = read_rope(c, {"default", "llama3"});
  return m;
}

}  // namespace slip
