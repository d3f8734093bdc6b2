// `inspect` of one checkpoint and of a folder of checkpoints.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "apps/inspect.hpp"
#include "apps/inspect_text.hpp"
#include "io/file.hpp"
#include "train/checkpoint.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

int64_t folder_bytes(const fs::path& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& e : fs::recursive_directory_iterator(folder, error)) {
    const uintmax_t size = e.is_regular_file(error) ? e.file_size(error) : 0;
    bytes += error ? 0 : static_cast<int64_t>(size);
  }
  return bytes;
}

// step-00000600 or step-00000600.partial; -1: neither.
int64_t step_in(const std::string& name) {
  int64_t step = -1;
  if (name.rfind("step-", 0) != 0) return -1;
  const char* end = name.data() + name.size();
  const auto [p, error] = std::from_chars(name.data() + 5, end, step);
  return error == std::errc() && (p == end || std::string(p, end) == ".partial") ? step : -1;
}

bool unfinished(const std::string& name) { return name.ends_with(".partial"); }

// Masters and moments of every drafter tensor, F32 and in its shape; headers only.
void check_state(Facts& facts, const std::string& folder, const DrafterModel& m) {
  const SafetensorsFile file(folder + "/state/optimizer.safetensors");
  for (const NamedShape& want : drafter_tensors(m)) {
    for (const char* part : {"master.", "m.", "v."}) {
      const TensorInfo* t = file.find(part + want.name);
      if (t == nullptr) fail_input(fmt::format("{}: no tensor {}{}", file.path(), part, want.name));
      if (t->dtype == Dtype::f32 && t->shape == want.shape) continue;
      fail_input(fmt::format("{}: {} is {} {}, want F32 {}", file.path(), t->name, t->dtype_text,
                             shape_text(t->shape), shape_text(want.shape)));
    }
  }
  facts["state_tensors"] = file.tensors().size();
}

void add_trainer(Facts& facts, const std::string& folder) {
  const TrainerState s = load_trainer_state(folder);
  facts["step"] = s.step;
  facts["total_steps"] = s.total_steps;
  facts["epoch"] = s.epoch;            // of the next step
  facts["epoch_step"] = s.epoch_step;  // steps of that epoch already made
  facts["next_step"] = s.step + 1;
  facts["finished"] = s.total_steps > 0 && s.step >= s.total_steps;
  facts["bad_steps"] = s.bad_steps;
  facts["documents"] = s.documents;
  facts["tokens"] = s.tokens;
  facts["config"] = s.config;
  facts["settings"] = changed_settings(s.config);
}

}  // namespace

Facts checkpoint_facts(const std::string& folder, const InspectOptions& o) {
  const std::string problem = checkpoint_problem(folder, o.verify);
  Facts facts{{"path", folder},
              {"kind", "checkpoint"},
              {"problems", Facts::array()},
              {"bytes", folder_bytes(folder)},
              {"complete", problem.empty()},
              {"verified", o.verify && problem.empty()}};
  if (!problem.empty()) facts["problems"].push_back(problem);
  if (is_there(folder + "/state/trainer.json")) attempt(facts, [&] { add_trainer(facts, folder); });
  if (!is_there(folder + "/drafter/config.json")) return facts;
  facts["drafter"] = model_facts(folder + "/drafter", o);
  for (const Facts& p : facts.at("drafter").at("problems")) facts["problems"].push_back(p);
  if (problem.empty())
    attempt(facts, [&] { check_state(facts, folder, read_drafter_config(folder + "/drafter")); });
  return facts;
}

std::string checkpoint_text(const Facts& f) {
  std::string out = fact_row("size", size_text(f.at("bytes").get<int64_t>()));
  out += fact_row("manifest", !f.at("complete").get<bool>() ? "this is no complete checkpoint"
                              : f.at("verified").get<bool>()
                                  ? "complete, checksums agree"
                                  : "complete, sizes agree (--verify compares checksums)");
  if (f.contains("step")) {
    const auto number = [&](const char* key) { return f.at(key).get<int64_t>(); };
    out += fact_row("step", fmt::format("{} of {}", number("step"), number("total_steps")));
    const std::string next = fmt::format("step {}, in epoch {} after {} of its steps", number("next_step"),
                                         number("epoch"), number("epoch_step"));
    out +=
        fact_row("continues with", next + (f.at("finished").get<bool>() ? " (finished: with --extend)" : ""));
    out += fact_row("data", fmt::format("{} documents, {} tokens", number("documents"), number("tokens")));
    if (number("bad_steps") > 0)
      out += fact_row("skipped", fmt::format("{} steps with NaN or infinity", number("bad_steps")));
    out += settings_text(f.at("settings"));
  }
  if (f.contains("drafter")) out += "  drafter\n" + indented(model_text(f.at("drafter")), 2);
  return out;
}

Facts checkpoints_facts(const std::string& folder, const InspectOptions& o) {
  Facts facts{{"path", folder}, {"kind", "folder of checkpoints"}, {"problems", Facts::array()}};
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code error;
  for (const fs::directory_entry& e : fs::directory_iterator(folder, error)) {
    const std::string name = e.path().filename().string();
    if (step_in(name) >= 0) found.push_back({step_in(name), name});
  }
  if (error) fail_input(fmt::format("{}: {}", folder, error.message()));
  std::sort(found.begin(), found.end());
  Facts list = Facts::array(), newest;
  bool latest_is_complete = false;
  const bool has_latest = is_there(folder + "/latest");
  std::string latest = has_latest ? read_text(folder + "/latest", 4096) : "";
  latest = latest.substr(0, latest.find_last_not_of(" \n") + 1);
  for (const auto& [step, name] : found) {
    const std::string path = folder + "/" + name;
    const std::string problem =
        unfinished(name) ? "unfinished: a save was interrupted" : checkpoint_problem(path, o.verify);
    list.push_back({{"name", name},
                    {"step", step},
                    {"bytes", folder_bytes(path)},
                    {"complete", problem.empty()},
                    {"problem", problem}});
    if (problem.empty()) newest = name;
    latest_is_complete = latest_is_complete || (problem.empty() && name == latest);
    if (!problem.empty() && !unfinished(name))
      facts["problems"].push_back(fmt::format("{}: {}", name, problem));
  }
  if (has_latest && !latest_is_complete) {
    facts["problems"].push_back(
        fmt::format("latest names '{}', which is no complete checkpoint here", printable(latest)));
  }
  facts["verified"] = o.verify;
  facts["latest"] = has_latest ? Facts(latest) : Facts();
  facts["continues_from"] = newest;
  facts["checkpoints"] = list;
  return facts;
}

std::string checkpoints_text(const Facts& f) {
  std::string out;
  for (const Facts& c : f.at("checkpoints")) {
    const bool complete = c.at("complete").get<bool>();
    out += fmt::format("  {:<24} {:>10}  {}\n", c.at("name").get<std::string>(),
                       size_text(c.at("bytes").get<int64_t>()),
                       !complete                      ? value_text(c.at("problem"))
                       : f.at("verified").get<bool>() ? "complete, checksums agree"
                                                      : "complete");
  }
  out += fact_row("latest", f.at("latest").is_null() ? "is missing" : value_text(f.at("latest")));
  return out + fact_row("continues from", f.at("continues_from").is_null()
                                              ? "nothing: no checkpoint is complete"
                                              : value_text(f.at("continues_from")));
}

}  // namespace slip
