#include <fmt/format.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <set>

#include "core/check.hpp"
#include "core/log.hpp"
#include "model/config_json.hpp"

namespace slip {

using nlohmann::json;
namespace {

constexpr int64_t kMaxBlock = 1024;

// The same drafter as speculators writes it down (dflash.md 1.5), in our keys. Its tap ids count the
// embedding's output as 0, ours the first layer's.
ConfigObject from_speculators(const ConfigObject& c) {
  if (c.text("speculators_model_type") != "dflash") c.refuse("speculators_model_type", "supported: dflash");
  c.need("transformer_layer_config");
  ConfigObject out = *c.object("transformer_layer_config");
  out.prefix = "";
  if (c.boolean("sample_from_anchor").value_or(false)) c.refuse("sample_from_anchor", "supported: false");
  const json& states = c.need("aux_hidden_state_layer_ids");
  if (!states.is_array()) c.refuse("aux_hidden_state_layer_ids", "a list of layer numbers is expected");
  json taps = json::array();
  for (const json& id : states) {
    if (!id.is_number_integer() || id.get<int64_t>() < 1)
      c.refuse("aux_hidden_state_layer_ids", "numbers from 1 are expected: 1 is the output of layer 0");
    taps.push_back(id.get<int64_t>() - 1);
  }
  const int64_t block = c.size("block_size");
  c.need("mask_token_id");
  out.keys["architectures"] = {"DFlashDraftModel"};
  out.keys["block_size"] = block;
  out.keys["dflash_config"] = {
      {"block_size", block}, {"mask_token_id", c.need("mask_token_id")}, {"target_layer_ids", taps}};
  if (c.boolean("sliding_window_non_causal").value_or(false)) out.keys["dflash_config"]["causal"] = false;
  if (const json* rows = c.find("draft_vocab_size")) out.keys["draft_vocab_size"] = *rows;
  const json* types = out.find("layer_types");
  if (types != nullptr && types->dump().find("sliding_attention") != std::string::npos) {
    log_warn(
        fmt::format("{}: speculators measures the window of sliding layers from the anchor, servers and this "
                    "program from each slot: one token less",
                    c.path));
  }
  return out;
}

// Other kinds of drafters, and keys that change what the same weights compute.
void refuse_other_kinds(const ConfigObject& c, const ConfigObject& dflash) {
  if (const json* names = c.find("architectures")) {
    if (!names->is_array() || std::find(names->begin(), names->end(), "DFlashDraftModel") == names->end()) {
      c.refuse("architectures", "supported: DFlashDraftModel");
    }
  }
  const std::string type = c.text("model_type").value_or("qwen3");
  if (type != "qwen3" && type != "dflash") c.refuse("model_type", "supported: qwen3, dflash (of TorchSpec)");
  refuse_unsupported(c);
  if (dflash.boolean("use_swa").value_or(false)) {
    dflash.refuse("use_swa", "not supported: write layer_types with sliding_attention and sliding_window");
  }
  for (const ConfigObject* o : {&c, &dflash}) {
    for (const char* key : {"input_embedding_scale", "output_multiplier"}) {
      if (o->number(key).value_or(1) != 1) o->refuse(key, "supported: 1");
    }
    for (const char* key : {"final_logit_softcapping", "attention_sink_bias", "projector_type",
                            "conv_kernel_size", "selector_rank"}) {
      const json* value = o->find(key);
      if (value != nullptr && *value != json(false)) o->refuse(key, "not supported");
    }
    if (o->boolean("shift_label").value_or(false)) o->refuse("shift_label", "supported: false");
  }
}

int64_t read_block(const ConfigObject& c, const ConfigObject& dflash) {
  const bool nested = dflash.find("block_size") != nullptr;
  const ConfigObject& from = nested ? dflash : c;
  const int64_t block = from.size("block_size");
  if (block < 2 || block > kMaxBlock)
    from.refuse("block_size", fmt::format("2 to {} is expected", kMaxBlock));
  if (nested && c.find("block_size") != nullptr && c.size("block_size") != block) {
    c.refuse("block_size", fmt::format("but dflash_config.block_size is {}", block));
  }
  return block;
}

// What is wrong with taps of a target of `layers` layers, or nothing.
std::string tap_complaint(const std::vector<int64_t>& taps, int64_t layers) {
  std::set<int64_t> seen;
  for (const int64_t id : taps) {
    if (id < 0 || id >= layers)
      return fmt::format("layer {} is outside 0..{} (the target has {} layers)", id, layers - 1, layers);
    if (!seen.insert(id).second)
      return fmt::format("layer {} is listed twice (each of 0..{} at most once)", id, layers - 1);
  }
  return "";
}

std::vector<int64_t> read_taps(const ConfigObject& dflash, int64_t target_layers) {
  const json& list = dflash.need("target_layer_ids");
  if (!list.is_array() || list.empty())
    dflash.refuse("target_layer_ids", "a list of layer numbers is expected");
  std::vector<int64_t> taps;
  for (const json& id : list) {
    if (!id.is_number_integer()) dflash.refuse("target_layer_ids", "a list of layer numbers is expected");
    taps.push_back(id);
  }
  const std::string complaint = tap_complaint(taps, target_layers);
  if (!complaint.empty()) dflash.refuse("target_layer_ids", complaint);
  return taps;
}

// Layer kinds, window and causality inside the block.
void read_layers(const ConfigObject& c, const ConfigObject& dflash, DrafterModel& m) {
  const std::vector<std::string> types =
      read_layer_types(c, m.layers, {"full_attention", "sliding_attention"});
  m.sliding.assign(static_cast<size_t>(m.layers), false);
  for (size_t l = 0; l < types.size(); ++l) m.sliding[l] = types[l] == "sliding_attention";
  const bool any = std::find(m.sliding.begin(), m.sliding.end(), true) != m.sliding.end();
  const std::optional<bool> use = c.boolean("use_sliding_window");
  if (any && use == false) c.refuse("use_sliding_window", "but layer_types has sliding_attention");
  if (!any && use == true) c.refuse("use_sliding_window", "but layer_types names no sliding_attention");
  if (any) {
    m.window = c.integer("sliding_window").value_or(0);
    if (m.window < m.block) {
      c.refuse("sliding_window",
               fmt::format("layers of sliding_attention need a window of at least block_size = {}", m.block));
    }
    if (m.window > INT32_MAX) c.refuse("sliding_window", "too large");
  }
  const std::optional<bool> top = c.boolean("is_causal"), nested = dflash.boolean("causal");
  if (top && nested && *top != *nested)
    c.refuse("is_causal", fmt::format("but dflash_config.causal is {}", *nested));
  const std::optional<bool> causal = top ? top : nested;
  m.causal_is_default = !causal;
  m.causal = causal ? std::vector<bool>(m.sliding.size(), *causal) : m.sliding;
}

// `target` fills in what a new drafter, or one that speculators wrote, may leave out.
DrafterModel read_drafter(const std::string& path, const TargetModel* target, bool is_new) {
  const ConfigObject written = read_config_object(path);
  const bool imported = written.find("speculators_model_type") != nullptr;
  const ConfigObject c = imported ? from_speculators(written) : written;
  const std::optional<ConfigObject> dflash = c.object("dflash_config");
  if (!dflash)
    c.refuse("dflash_config",
             "an object with mask_token_id and target_layer_ids is expected: this is no DFlash drafter");
  refuse_other_kinds(c, *dflash);

  DrafterModel m;
  m.source = c.path;
  m.hidden = c.size("hidden_size");
  m.intermediate = c.size("intermediate_size");
  m.layers = read_layers_count(c);
  m.heads = c.size("num_attention_heads");
  m.kv_heads = read_kv_heads(c, m.heads);
  m.head_dim = read_head_dim(c, m.hidden, m.heads);
  m.vocab = c.size("vocab_size");
  if (const auto rows = c.integer("draft_vocab_size"); rows && *rows != m.vocab) {
    c.refuse("draft_vocab_size",
             fmt::format("a reduced vocabulary is not supported; supported: vocab_size ({})", m.vocab));
  }
  m.block = read_block(c, *dflash);
  dflash->need("mask_token_id");
  m.mask_token = *dflash->integer("mask_token_id");
  if (m.mask_token < 0 || m.mask_token >= m.vocab) {
    dflash->refuse("mask_token_id",
                   fmt::format("0..{} is expected (the embedding has rows = {})", m.vocab - 1, m.vocab));
  }
  const bool filled = target != nullptr && (is_new || imported) && c.find("num_target_layers") == nullptr;
  m.target_layers = filled ? target->layers : c.size("num_target_layers");
  if (is_new && dflash->find("target_layer_ids") == nullptr) {
    m.taps = default_taps(m.target_layers, m.layers);
    log_info(fmt::format("{}: no target_layer_ids: taps are {}", m.source, fmt::join(m.taps, ", ")));
  } else {
    m.taps = read_taps(*dflash, m.target_layers);
  }
  read_layers(c, *dflash, m);
  m.eps = static_cast<float>(c.positive("rms_norm_eps"));
  m.initializer_range = c.number("initializer_range").value_or(m.initializer_range);
  if (!(m.initializer_range >= 0) || !std::isfinite(m.initializer_range))
    c.refuse("initializer_range", "a number from 0 is expected");
  m.max_position = c.size("max_position_embeddings");
  m.rope = read_rope(c, {.types = {"default"}});
  if (const json* bos = c.find("bos_token_id")) m.bos_token = bos->dump();
  if (const json* eos = c.find("eos_token_id")) m.eos_token = eos->dump();
  return m;
}

// 1e-06 and not 9.999999974752427e-07; 1000000 and not 1000000.0.
json short_number(float x) { return json::parse(fmt::format("{}", x)); }
json short_number(double x) {
  return x == std::floor(x) && std::abs(x) < 1e15 ? json(static_cast<int64_t>(x)) : json(x);
}

}  // namespace

DrafterModel read_drafter_config(const std::string& path, const TargetModel* target) {
  return read_drafter(path, target, false);
}

DrafterModel read_new_drafter_config(const std::string& path, const TargetModel& target) {
  return read_drafter(path, &target, true);
}

std::string drafter_config_json(const DrafterModel& m) {
  std::vector<std::string> types;
  for (const bool sliding : m.sliding) types.push_back(sliding ? "sliding_attention" : "full_attention");
  const bool any_sliding = std::find(m.sliding.begin(), m.sliding.end(), true) != m.sliding.end();

  nlohmann::ordered_json j;
  j["architectures"] = {"DFlashDraftModel"};
  j["model_type"] = "qwen3";
  j["block_size"] = m.block;
  j["dflash_config"] = {
      {"block_size", m.block}, {"mask_token_id", m.mask_token}, {"target_layer_ids", m.taps}};
  j["num_target_layers"] = m.target_layers;
  j["hidden_size"] = m.hidden;
  j["intermediate_size"] = m.intermediate;
  j["num_hidden_layers"] = m.layers;
  j["num_attention_heads"] = m.heads;
  j["num_key_value_heads"] = m.kv_heads;
  j["head_dim"] = m.head_dim;
  j["hidden_act"] = "silu";
  j["rms_norm_eps"] = short_number(m.eps);
  j["attention_bias"] = false;
  j["attention_dropout"] = 0.0;
  j["max_position_embeddings"] = m.max_position;
  j["rope_theta"] = short_number(m.rope.theta);
  j["rope_scaling"] = nullptr;
  j["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", short_number(m.rope.theta)}};
  j["layer_types"] = types;
  j["sliding_window"] = any_sliding ? nlohmann::ordered_json(m.window) : nlohmann::ordered_json(nullptr);
  j["use_sliding_window"] = any_sliding;
  j["max_window_layers"] = m.layers;
  if (m.causal != m.sliding) {  // not what servers assume: sliding layers causal, full ones not
    const bool causal = m.causal.at(0);
    require(std::find(m.causal.begin(), m.causal.end(), !causal) == m.causal.end(),
            "is_causal: config.json has one value for all layers");
    j["is_causal"] = causal;
  }
  j["initializer_range"] = m.initializer_range;
  j["tie_word_embeddings"] = false;
  j["vocab_size"] = m.vocab;
  j["bos_token_id"] = nlohmann::ordered_json::parse(m.bos_token);
  j["eos_token_id"] = nlohmann::ordered_json::parse(m.eos_token);
  j["dtype"] = "bfloat16";
  j["torch_dtype"] = "bfloat16";
  j["use_cache"] = true;
  return j.dump(2) + "\n";
}

void check_fit(const DrafterModel& d, const TargetModel& t, const std::string& target_path) {
  std::vector<std::string> wrong;
  const auto differ = [&](const char* key, int64_t drafter, const char* target_key, int64_t target) {
    if (drafter == target) return;
    wrong.push_back(fmt::format("{}: {} is {}, but {} of the target {} is {}", d.source, key, drafter,
                                target_key, target_path, target));
  };
  differ("hidden_size", d.hidden, "hidden_size", t.hidden);
  differ("vocab_size", d.vocab, "vocab_size", t.vocab);
  differ("num_target_layers", d.target_layers, "num_hidden_layers", t.layers);
  const std::string complaint = tap_complaint(d.taps, t.layers);
  if (!complaint.empty()) {
    wrong.push_back(fmt::format("{}: dflash_config.target_layer_ids is [{}]; {}", d.source,
                                fmt::join(d.taps, ", "), complaint));
  }
  if (d.mask_token < 0 || d.mask_token >= t.vocab) {
    wrong.push_back(
        fmt::format("{}: dflash_config.mask_token_id is {}, the embedding of the target {} has rows = {}",
                    d.source, d.mask_token, target_path, t.vocab));
  }
  if (!wrong.empty()) fail_usage(fmt::format("{}", fmt::join(wrong, "; ")));
  if (std::find(d.taps.begin(), d.taps.end(), t.layers - 1) != d.taps.end()) {
    log_warn(
        fmt::format("{}: tap {} is the target's last layer: its stream before the final norm is used; some "
                    "servers fail on it",
                    d.source, t.layers - 1));
  }
}

std::vector<int64_t> default_taps(int64_t target_layers, int64_t count) {
  require(target_layers >= 1 && count >= 1, "default_taps: at least one layer and one tap");
  std::vector<int64_t> taps;
  for (int64_t i = 0; i < count; ++i) {
    // nearbyint rounds halves to even, as the rule's origin does.
    const double at = count == 1
                          ? static_cast<double>(target_layers / 2)
                          : 1 + static_cast<double>(i * (target_layers - 4)) / static_cast<double>(count - 1);
    taps.push_back(static_cast<int64_t>(std::nearbyint(at)));
  }
  const std::string complaint = tap_complaint(taps, target_layers);
  if (!complaint.empty()) {
    fail_usage(fmt::format(
        "{} taps of a target of {} layers: the default rule gives [{}]; {}; write target_layer_ids", count,
        target_layers, fmt::join(taps, ", "), complaint));
  }
  return taps;
}

std::vector<NamedShape> drafter_tensors(const DrafterModel& m) {
  const int64_t h = m.hidden, q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim, i = m.intermediate;
  std::vector<NamedShape> list = {{"fc.weight", {h, static_cast<int64_t>(m.taps.size()) * h}},
                                  {"hidden_norm.weight", {h}},
                                  {"norm.weight", {h}}};
  for (int64_t l = 0; l < m.layers; ++l) {
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      list.push_back({fmt::format("layers.{}.{}.weight", l, name), std::move(shape)});
    };
    add("input_layernorm", {h});
    add("self_attn.q_proj", {q, h});
    add("self_attn.k_proj", {kv, h});
    add("self_attn.v_proj", {kv, h});
    add("self_attn.o_proj", {h, q});
    add("self_attn.q_norm", {m.head_dim});
    add("self_attn.k_norm", {m.head_dim});
    add("post_attention_layernorm", {h});
    add("mlp.gate_proj", {i, h});
    add("mlp.up_proj", {i, h});
    add("mlp.down_proj", {h, i});
  }
  return list;
}

int64_t parameter_count(const DrafterModel& m) {
  int64_t total = 0;
  for (const NamedShape& t : drafter_tensors(m)) {
    int64_t n = 1;
    for (const int64_t d : t.shape) n *= d;
    total += n;
  }
  return total;
}

}  // namespace slip
