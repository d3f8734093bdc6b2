#include "train/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/log.hpp"
#include "core/progress.hpp"
#include "io/durable.hpp"
#include "io/json_file.hpp"
#include "io/safetensors.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

constexpr int kVersion = 1;
const char* const kFiles[] = {"drafter/config.json", "drafter/model.safetensors",
                              "state/optimizer.safetensors", "state/trainer.json"};

std::string step_name(int64_t step) { return fmt::format("step-{:08}", step); }

// The step a folder's name says, or -1.
int64_t step_of(const std::string& name) {
  int64_t step = -1;
  if (name.size() < 13 || name.rfind("step-", 0) != 0) return -1;
  const char* end = name.data() + name.size();
  const auto [p, error] = std::from_chars(name.data() + 5, end, step);
  return error == std::errc() && p == end ? step : -1;
}

std::vector<TensorToWrite> named(const std::string& prefix, const ParameterLayout& layout,
                                 const float* flat) {
  std::vector<TensorToWrite> out;
  for (const ParameterLayout::Entry& e : layout.entries)
    out.push_back({prefix + e.name, Dtype::f32, e.shape, flat + e.offset});
  return out;
}

// The published weights are the masters rounded to bf16: what a new drafter started from and what is served.
void write_drafter(const std::string& folder, const DrafterModel& model, const ParameterLayout& layout,
                   const float* master, const std::function<void(int64_t)>& moved) {
  fs::create_directory(folder);
  write_text_durably(folder + "/config.json", drafter_config_json(model));
  std::vector<Bf16> bits(static_cast<size_t>(layout.count));
  std::transform(master, master + layout.count, bits.begin(), to_bf16);
  std::vector<TensorToWrite> tensors;
  for (const ParameterLayout::Entry& e : layout.entries)
    tensors.push_back({e.name, Dtype::bf16, e.shape, bits.data() + e.offset});
  write_safetensors(folder + "/model.safetensors", tensors, {}, moved);
}

nlohmann::json to_json(const TrainerState& s) {
  return {{"version", kVersion},
          {"step", s.step},
          {"epoch", s.epoch},
          {"epoch_step", s.epoch_step},
          {"bad_steps", s.bad_steps},
          {"bad_in_a_row", s.bad_in_a_row},
          {"total_steps", s.total_steps},
          {"documents", s.documents},
          {"tokens", s.tokens},
          {"config", s.config}};
}

// Complete checkpoints of a folder by step, ascending; incomplete ones are reported when asked.
std::vector<std::pair<int64_t, std::string>> complete(const std::string& folder, bool report) {
  std::vector<std::pair<int64_t, std::string>> out;
  std::error_code missing;
  for (const fs::directory_entry& e : fs::directory_iterator(folder, missing)) {
    const std::string name = e.path().filename().string();
    const int64_t step = step_of(name);
    if (step < 0) {
      if (report && name.rfind("step-", 0) == 0)
        log_warn(fmt::format("{}: an unfinished checkpoint, ignored", e.path().string()));
      continue;
    }
    const std::string problem = checkpoint_problem(e.path().string(), false);
    if (problem.empty()) {
      out.push_back({step, e.path().string()});
    } else if (report) {
      log_warn(fmt::format("{}: ignored: {}", e.path().string(), problem));
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

// What killed or failed saves left behind. One rank saves, so nobody writes there.
void remove_partials(const std::string& folder) {
  std::vector<fs::path> old;
  for (const fs::directory_entry& e : fs::directory_iterator(folder)) {
    const std::string name = e.path().filename().string();
    if (name.rfind("step-", 0) == 0 && e.path().extension() == ".partial") old.push_back(e.path());
  }
  for (const fs::path& p : old) fs::remove_all(p);
}

// bf16 weights; masters and two moments in fp32.
constexpr int64_t kParameterBytes = 2 + 3 * 4;

void require_room(const std::string& folder, int64_t parameters) {
  // with names, and the small files
  const int64_t needed = parameters * kParameterBytes + (1 << 18), there = free_bytes(folder);
  if (there < 0 || there >= needed) return;
  fail(fmt::format("{}: a checkpoint needs {} bytes, {} are free; the checkpoints before stay", folder,
                   needed, there));
}

// A checkpoint that fails makes room again.
struct Unfinished {
  std::string path;
  ~Unfinished() {
    std::error_code ignored;
    if (!path.empty()) fs::remove_all(path, ignored);
  }
};

// Of the complete ones, the `count` with the highest decoded acceptance, best first.
std::vector<std::string> best_of(const std::vector<std::pair<int64_t, std::string>>& all, int64_t count) {
  std::vector<std::pair<double, std::string>> decoded;  // newest first
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    const double acceptance = read_json_file(it->second + "/manifest.json").value("decoded_acceptance", 0.0);
    if (acceptance > 0) decoded.push_back({acceptance, it->second});
  }
  std::stable_sort(decoded.begin(), decoded.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> out;
  for (const auto& d : decoded)
    if (static_cast<int64_t>(out.size()) < count) out.push_back(d.second);
  return out;
}

void remove_old(const std::string& folder, const std::string& just_saved, const KeepRule& keep) {
  const auto all = complete(folder, false);
  const std::vector<std::string> best = best_of(all, keep.best);
  if (!best.empty()) write_text_durably(folder + "/best", fs::path(best.front()).filename().string() + "\n");
  if (keep.newest == 0) return;
  for (size_t i = 0; i + static_cast<size_t>(keep.newest) < all.size(); ++i) {
    const auto& [step, path] = all[i];
    const bool for_ever = keep.every > 0 && step % keep.every == 0;
    const bool good = std::find(best.begin(), best.end(), path) != best.end();
    if (path != just_saved && !for_ever && !good) fs::remove_all(path);
  }
}

}  // namespace

double SaveHooks::bytes(const ParameterLayout& layout) {
  return 2 * static_cast<double>(layout.count * kParameterBytes);
}

std::string save_checkpoint(const std::string& folder, const DrafterModel& model,
                            const ParameterLayout& layout, const OptimizerState& optimizer,
                            const TrainerState& state, const KeepRule& keep, const SaveHooks& hooks) {
  fs::create_directories(folder);
  const std::string path = folder + "/" + step_name(state.step), partial = path + ".partial";
  remove_partials(folder);
  require_room(folder, layout.count);
  fs::create_directory(partial);
  Unfinished unfinished{partial};
  const auto tell = [&](const char* file) {
    if (hooks.wrote) hooks.wrote(file);
  };
  write_drafter(partial + "/drafter", model, layout, optimizer.master, hooks.moved);
  tell("drafter");
  fs::create_directory(partial + "/state");
  std::vector<TensorToWrite> tensors;
  for (const auto& [prefix, flat] :
       {std::pair{"master.", optimizer.master}, {"m.", optimizer.m}, {"v.", optimizer.v}}) {
    for (TensorToWrite& t : named(prefix, layout, flat)) tensors.push_back(std::move(t));
  }
  write_safetensors(partial + "/state/optimizer.safetensors", tensors, {}, hooks.moved);
  tell("optimizer");
  write_text_durably(partial + "/state/trainer.json", to_json(state).dump(2) + "\n");
  tell("trainer");
  sync_folder(partial + "/drafter");
  sync_folder(partial + "/state");

  nlohmann::json manifest = {{"version", kVersion},
                             {"step", state.step},
                             {"checksum", "xxh3-64"},
                             {"files", nlohmann::json::array()}};
  if (state.decoded_acceptance > 0) manifest["decoded_acceptance"] = state.decoded_acceptance;
  for (const char* name : kFiles) {
    const std::string file = partial + "/" + name;
    manifest["files"].push_back({{"name", name},
                                 {"bytes", fs::file_size(file)},
                                 {"xxh3", fmt::format("{:016x}", file_xxh3(file, hooks.moved))}});
  }
  write_text_durably(partial + "/manifest.json", manifest.dump(2) + "\n");
  tell("manifest");
  fs::remove_all(path);  // the same step saved again, after --resume from an older one
  rename_durably(partial, path);
  unfinished.path.clear();
  tell("rename");
  write_text_durably(folder + "/latest", step_name(state.step) + "\n");

  remove_old(folder, path, keep);
  return path;
}

std::string checkpoint_problem(const std::string& path, bool checksums) {
  const std::string manifest_path = path + "/manifest.json";
  if (!fs::is_directory(path)) return "there is no such folder";
  if (!fs::exists(manifest_path)) return "no manifest.json: it was not finished";
  try {
    const nlohmann::json manifest = read_json_file(manifest_path);
    if (manifest.at("version").get<int>() != kVersion)
      return fmt::format("manifest version {}, this program reads {}", manifest.at("version").dump(),
                         kVersion);
    std::set<std::string> listed;
    for (const nlohmann::json& f : manifest.at("files")) {
      const std::string name = f.at("name").get<std::string>(), file = path + "/" + name;
      listed.insert(name);
      std::error_code error;
      const uintmax_t size = fs::file_size(file, error), declared = f.at("bytes").get<uintmax_t>();
      if (error) return fmt::format("{} is missing", name);
      if (size != declared) return fmt::format("{} has {} bytes, the manifest says {}", name, size, declared);
      if (!checksums) continue;
      Progress progress("checking " + file, static_cast<double>(size), "bytes");
      const auto read = [&](int64_t n) { progress.add(static_cast<double>(n)); };
      const std::string found = fmt::format("{:016x}", file_xxh3(file, read)),
                        want = f.at("xxh3").get<std::string>();
      if (found != want) return fmt::format("{} has checksum {}, the manifest says {}", name, found, want);
    }
    for (const char* name : kFiles) {
      if (!listed.contains(name)) return fmt::format("the manifest does not list {}", name);
    }
  } catch (const nlohmann::json::exception& e) {
    return fmt::format("manifest.json: {}", json_complaint(e));
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::optional<std::string> newest_checkpoint(const std::string& folder) {
  const auto all = complete(folder, true);
  return all.empty() ? std::nullopt : std::optional(all.back().second);
}

TrainerState load_trainer_state(const std::string& path) {
  const std::string file = path + "/state/trainer.json";
  const nlohmann::json j = read_json_file(file);
  TrainerState s;
  try {
    s.step = j.at("step").get<int64_t>();
    s.epoch = j.at("epoch").get<int64_t>();
    s.epoch_step = j.at("epoch_step").get<int64_t>();
    s.bad_steps = j.at("bad_steps").get<int64_t>();
    s.bad_in_a_row = j.at("bad_in_a_row").get<int64_t>();
    s.total_steps = j.at("total_steps").get<int64_t>();
    s.documents = j.at("documents").get<int64_t>();
    s.tokens = j.at("tokens").get<int64_t>();
    s.config = j.at("config").get<std::map<std::string, std::string>>();
  } catch (const nlohmann::json::exception& e) {
    fail_input(fmt::format("{}: {}", file, json_complaint(e)));
  }
  return s;
}

LoadedCheckpoint load_checkpoint(const std::string& path, const ParameterLayout& layout) {
  const std::string problem = checkpoint_problem(path, true);
  if (!problem.empty()) fail_input(fmt::format("{}: {}", path, problem));
  LoadedCheckpoint out{load_trainer_state(path), {}, read_drafter_config(path + "/drafter")};
  const SafetensorsFile file(path + "/state/optimizer.safetensors");
  const auto read = [&](const std::string& prefix, std::vector<float>& flat) {
    flat.resize(static_cast<size_t>(layout.count));
    for (const ParameterLayout::Entry& e : layout.entries) {
      const TensorInfo* t = file.find(prefix + e.name);
      if (t == nullptr) fail_input(fmt::format("{}: no tensor {}{}", file.path(), prefix, e.name));
      if (t->shape != e.shape || t->dtype != Dtype::f32) {
        fail_input(fmt::format("{}: {} is {} {}, want F32 {}", file.path(), t->name, t->dtype_text,
                               shape_text(t->shape), shape_text(e.shape)));
      }
      file.read(*t, flat.data() + e.offset);
    }
  };
  read("master.", out.optimizer.master);
  read("m.", out.optimizer.m);
  read("v.", out.optimizer.v);
  return out;
}

std::vector<std::string> resume_contradictions(const TrainerState& saved, const TrainerState& now) {
  // Free to change: where the run lives, how it is spread and watched; and the files' places, which may have
  // moved (their content is compared by documents, tokens and the drafter's own config).
  const auto precision = now.config.find("train.precision");
  const bool fp8 = precision != now.config.end() && precision->second == "fp8";
  const auto free_key = [fp8](const std::string& key) {
    if (fp8 && key == "train.blocks_per_pass") return false;  // scales hold for a pass: other rounding
    static const char* const kFree[] = {"roles.", "log.", "checkpoint.", "eval.", "comm.", "dump."};
    static const char* const kFreeKeys[] = {
        "train.blocks_per_pass", "train.max_minutes", "train.max_bad_steps", "train.steps",
        "data.epochs",           "target.path",       "target.attention",    "data.tokens",
        "data.features",         "drafter.config",    "drafter.init_from"};
    return std::any_of(std::begin(kFree), std::end(kFree),
                       [&](const char* p) { return key.rfind(p, 0) == 0; }) ||
           std::any_of(std::begin(kFreeKeys), std::end(kFreeKeys), [&](const char* k) { return key == k; });
  };
  std::vector<std::string> out;
  for (const auto& [key, value] : now.config) {
    const auto old = saved.config.find(key);
    if (free_key(key) || key == kWeightsKey || old == saved.config.end() || old->second == value) continue;
    out.push_back(
        fmt::format("{}: the checkpoint has {}, the configuration says {}", key, old->second, value));
  }
  const auto number = [&](const char* what, int64_t was, int64_t is) {
    if (was != is) out.push_back(fmt::format("{}: the checkpoint has {}, now there are {}", what, was, is));
  };
  const auto weights = [](const TrainerState& s) {
    const auto at = s.config.find(kWeightsKey);
    return at == s.config.end() ? std::string("1") : at->second;  // checkpoints from before weights
  };
  if (weights(saved) != weights(now))
    out.push_back(fmt::format("weights of data.tokens: the checkpoint has {}, the configuration says {}",
                              weights(saved), weights(now)));
  number("documents of data.tokens", saved.documents, now.documents);
  number("tokens of data.tokens", saved.tokens, now.tokens);
  return out;
}

}  // namespace slip
