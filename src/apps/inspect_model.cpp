// `inspect` of a Hugging Face folder: a target, a drafter, or weights without a config.json.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "apps/inspect.hpp"
#include "apps/inspect_text.hpp"
#include "io/json_file.hpp"
#include "model/config.hpp"
#include "model/target.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

// What config.json says, as it says it; the text part of a multimodal one where the key is not outside.
Facts architecture_facts(const nlohmann::json& config) {
  static constexpr const char* kKeys[] = {"architectures",
                                          "model_type",
                                          "hidden_size",
                                          "intermediate_size",
                                          "num_hidden_layers",
                                          "num_attention_heads",
                                          "num_key_value_heads",
                                          "head_dim",
                                          "vocab_size",
                                          "tie_word_embeddings",
                                          "max_position_embeddings",
                                          "rms_norm_eps",
                                          "rope_theta",
                                          "rope_scaling",
                                          "rope_parameters",
                                          "dtype",
                                          "torch_dtype"};
  const nlohmann::json inner = config.value("text_config", nlohmann::json::object());
  Facts out = Facts::object();
  for (const char* key : kKeys) {
    if (config.contains(key)) {
      out[key] = config.at(key);
    } else if (inner.is_object() && inner.contains(key)) {
      out[key] = inner.at(key);
    }
  }
  return out;
}

bool is_drafter(const nlohmann::json& config) {
  const auto names = config.find("architectures");
  return config.contains("dflash_config") ||
         (names != config.end() && names->is_array() &&
          std::find(names->begin(), names->end(), "DFlashDraftModel") != names->end());
}

Facts drafter_facts(const DrafterModel& m) {
  Facts layers = Facts::array();
  for (size_t l = 0; l < m.sliding.size(); ++l) {
    layers.push_back(
        {{"window", m.sliding[l] ? Facts(m.window) : Facts()}, {"causal", static_cast<bool>(m.causal[l])}});
  }
  return {{"block_size", m.block}, {"mask_token_id", m.mask_token},
          {"taps", m.taps},        {"target_layers", m.target_layers},
          {"layers", layers},      {"parameters", parameter_count(m)}};
}

// Every published tensor is there, in its shape; others are named, they do no harm.
void compare_published(Facts& facts, const DrafterModel& m, const WeightFolder& weights) {
  Facts missing = Facts::array(), wrong = Facts::array(), extra = Facts::array();
  const std::vector<NamedShape> published = drafter_tensors(m);
  for (const NamedShape& want : published) {
    const TensorInfo* t = weights.find(want.name);
    if (t == nullptr) {
      missing.push_back(want.name);
    } else if (t->shape != want.shape) {
      wrong.push_back(fmt::format("{} is {}, config.json asks for {}", want.name, shape_text(t->shape),
                                  shape_text(want.shape)));
    } else {
      attempt(facts, [&] { require_float(*t); });
    }
  }
  for (const std::string& name : weights.names()) {
    const bool known =
        std::any_of(published.begin(), published.end(), [&](const NamedShape& p) { return p.name == name; });
    if (!known) extra.push_back(name);
  }
  const auto complain = [&](const Facts& list, const char* what) {
    if (list.empty()) return;
    facts["problems"].push_back(fmt::format("{} of {} published tensors {}: {}{}", list.size(),
                                            published.size(), what, list.at(0).get<std::string>(),
                                            list.size() > 1 ? ", ..." : ""));
  };
  complain(missing, "missing");
  complain(wrong, "of another shape");
  facts["published"] = {
      {"expected", published.size()}, {"missing", missing}, {"wrong_shape", wrong}, {"others", extra}};
}

void add_weights(Facts& facts, const std::string& folder, const InspectOptions& o,
                 const DrafterModel* drafter, const TargetModel* target) {
  const WeightFolder weights(folder);
  std::vector<TensorInfo> tensors;
  for (const std::string& name : weights.names()) tensors.push_back(*weights.find(name));
  if (drafter != nullptr) compare_published(facts, *drafter, weights);
  if (target != nullptr)
    attempt(facts, [&] { check_target_tensors(*target, weights, {target->layers, true}); });
  add_tensor_facts(facts, std::move(tensors), o);
  if (o.verify && (facts.at("nan") != 0 || facts.at("inf") != 0)) {
    facts["problems"].push_back(fmt::format("weights that are not finite: {} NaN, {} infinite",
                                            facts.at("nan").dump(), facts.at("inf").dump()));
  }
}

std::string layers_text(const Facts& layers) {
  std::string out;
  for (size_t l = 0; l < layers.size();) {
    size_t end = l;
    while (end < layers.size() && layers[end] == layers[l]) ++end;
    const Facts& window = layers[l].at("window");
    out += fmt::format("{}{}{} {}, {} in the block", out.empty() ? "" : "; ", l,
                       end - l > 1 ? fmt::format("-{}", end - 1) : "",
                       window.is_null() ? "full" : fmt::format("sliding over {}", window.dump()),
                       layers[l].at("causal").get<bool>() ? "causal" : "not causal");
    l = end;
  }
  return out;
}

}  // namespace

Facts model_facts(const std::string& folder, const InspectOptions& o) {
  Facts facts{{"path", folder}, {"kind", "weights"}, {"problems", Facts::array()}};
  std::optional<DrafterModel> drafter;
  std::optional<TargetModel> target;
  if (is_there(folder + "/config.json")) {
    const nlohmann::json config = read_json_file(folder + "/config.json");
    facts["architecture"] = architecture_facts(config);
    if (is_drafter(config)) {
      facts["kind"] = "drafter";
      attempt(facts, [&] {
        drafter = read_drafter_config(folder);
        facts["drafter"] = drafter_facts(*drafter);
      });
    } else {
      // A model that is no target for this program is still a model: its refusal is a fact, not a problem.
      facts["kind"] = "target";
      Facts refused{{"problems", Facts::array()}};
      attempt(refused, [&] { target = read_target_config(folder); });
      facts["usable"] = target.has_value();
      if (!target) facts["refused"] = refused.at("problems").at(0);
    }
  }
  // An architecture alone is no fault: --synthetic-weights runs from it.
  const bool weights =
      is_there(folder + "/model.safetensors") || is_there(folder + "/model.safetensors.index.json");
  if (!weights) return facts;
  attempt(facts,
          [&] { add_weights(facts, folder, o, drafter ? &*drafter : nullptr, target ? &*target : nullptr); });
  return facts;
}

std::string model_text(const Facts& f) {
  std::string out;
  if (const Facts architecture = value_or_null(f, "architecture"); !architecture.is_null()) {
    std::string keys;
    for (const auto& [key, value] : architecture.items())
      keys += fmt::format("{} = {}\n", key, value.is_string() ? value_text(value) : value.dump());
    out += "  config.json\n" + indented(keys, 4);
  }
  if (const Facts d = value_or_null(f, "drafter"); !d.is_null()) {
    out += fact_row("block", d.at("block_size").dump());
    out += fact_row("mask token", d.at("mask_token_id").dump());
    out += fact_row("taps", fmt::format("{} of a target of {} layers", d.at("taps").dump(),
                                        d.at("target_layers").dump()));
    out += fact_row("layers", layers_text(d.at("layers")));
  }
  if (const Facts p = value_or_null(f, "published"); !p.is_null()) {
    const size_t expected = p.at("expected").get<size_t>(),
                 good = expected - p.at("missing").size() - p.at("wrong_shape").size();
    out += fact_row("published", fmt::format("{} of {} tensors are there in their shape", good, expected));
    const auto list = [&](const char* key, const char* label) {
      for (const Facts& t : p.at(key)) out += fact_row(label, value_text(t));
    };
    list("missing", "missing");
    list("wrong_shape", "wrong shape");
    list("others", "not published");
  }
  if (f.at("kind") == "target") {
    out +=
        fact_row("as a target",
                 f.at("usable").get<bool>() ? "supported" : "not supported: " + value_text(f.at("refused")));
  }
  return out + (f.contains("tensors") ? tensor_table_text(f) : fact_row("weights", "none that can be read"));
}

}  // namespace slip
