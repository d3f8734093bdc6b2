// Reading the keys of a Hugging Face config.json, each with a message that names file, key and value. For the
// .cpp files of config.hpp only: it includes nlohmann's header.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "io/json_file.hpp"
#include "model/config.hpp"

namespace slip {

// One object of the file. `prefix` names it in messages: "" or "dflash_config.".
struct ConfigObject {
  std::string path;
  std::string prefix;
  nlohmann::json keys;

  const nlohmann::json* find(const std::string& key) const;  // null when absent or JSON null
  const nlohmann::json& need(const std::string& key) const;
  std::optional<ConfigObject> object(const std::string& key) const;
  int64_t size(const std::string& key) const;  // 1 ... 2^31-1
  std::optional<int64_t> integer(const std::string& key) const;
  std::optional<double> number(const std::string& key) const;
  double positive(const std::string& key) const;
  std::optional<bool> boolean(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const;
  // "FILE: KEY is VALUE; WHAT": fail_input.
  [[noreturn]] void refuse(const std::string& key, const std::string& what) const;
};

// The object in `path`, a file or a folder with config.json in it.
ConfigObject read_config_object(const std::string& path);

// What targets and drafters share: refuses attention_bias, mlp_bias, hidden_act other than silu,
// quantization.
void refuse_unsupported(const ConfigObject&);
void refuse_quantized(const ConfigObject&);
// Either spelling of RoPE; what both say must agree.
struct RopeRules {
  std::vector<std::string> types;           // supported
  std::optional<double> default_partial{};  // partial rotation is supported, and this is it when absent
  bool sections = false;  // mrope_section is known: for text all its positions are the token's
};
RopeConfig read_rope(const ConfigObject&, const RopeRules&);
int64_t read_layers_count(const ConfigObject&);  // num_hidden_layers
int64_t read_head_dim(const ConfigObject&, int64_t hidden,
                      int64_t heads);  // from the file, else hidden / heads
int64_t read_kv_heads(const ConfigObject&, int64_t heads);
std::vector<std::string> read_layer_types(const ConfigObject&, int64_t layers,
                                          const std::vector<std::string>& supported);  // empty: absent

}  // namespace slip
