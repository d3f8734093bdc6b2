// `inspect` of a run directory.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "apps/inspect.hpp"
#include "apps/inspect_text.hpp"
#include "core/config.hpp"
#include "io/file.hpp"
#include "io/json_file.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMaxText = 1 << 20;

std::string trimmed(const std::string& s) {
  const size_t first = s.find_first_not_of(" \t\r\n");
  return first == std::string::npos ? "" : s.substr(first, s.find_last_not_of(" \t\r\n") - first + 1);
}

// config.ini as key and value, whatever program wrote it: keys that this one does not know are shown as well.
std::map<std::string, std::string> read_settings(const std::string& path) {
  std::map<std::string, std::string> out;
  std::string section;
  const std::string text = read_text(path, kMaxText);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = trimmed(text.substr(at, end - at));
    at = end + 1;
    const size_t equals = line.find('=');
    if (line.starts_with('[') && line.ends_with(']')) {
      section = line.substr(1, line.size() - 2);
    } else if (!line.starts_with('#') && equals != std::string::npos) {
      out[section + "." + trimmed(line.substr(0, equals))] = trimmed(line.substr(equals + 1));
    }
  }
  return out;
}

// The objects of a JSON lines file, one by one. A last line without its end was being written when the run
// stopped.
template <class F> void for_lines(Facts& facts, const std::string& path, F&& f) {
  std::ifstream in(path);
  if (!in) fail_input(fmt::format("{}: cannot be read", path));
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    const Facts object = Facts::parse(line, nullptr, false);
    if (object.is_object()) {
      f(object);
    } else if (!in.eof()) {
      facts["problems"].push_back(fmt::format("{}: line {} is no JSON object", path, number));
      return;
    }
  }
}

void add_ranks(Facts& facts, const std::string& path) {
  const nlohmann::json plan = read_json_file(path, 256 << 20);
  Facts ranks = Facts::object();
  for (const char* key : {"ranks", "targets", "drafters"}) ranks[key] = plan.value(key, nlohmann::json());
  facts["ranks"] = ranks;
}

// Some keys of a line of metrics.jsonl or eval.jsonl, as text.
std::string progress_text(const Facts& line) {
  std::string out;
  for (const auto& [key, label] : {std::pair{"step", "step"},
                                   {"epoch", "epoch"},
                                   {"loss", "loss"},
                                   {"accuracy", "accuracy"},
                                   {"acceptance_length", "acceptance length"},
                                   {"grad_norm", "gradient norm"},
                                   {"lr", "lr"},
                                   {"tokens_per_s", "tokens/s"}}) {
    if (line.contains(key))
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", label, value_text(line.at(key)));
  }
  if (const Facts decoded = value_or_null(line, "decoded"); decoded.is_object())
    out += fmt::format(", decoded {}", value_text(value_or_null(decoded, "pooled")));
  return out;
}

}  // namespace

Facts changed_settings(const std::map<std::string, std::string>& settings) {
  std::map<std::string, std::string> defaults;
  const Config config;
  fields(config,
         [&](const char* key, const auto& value, const char*) { defaults[key] = fmt::format("{}", value); });
  Facts out = Facts::object();
  for (const auto& [key, value] : settings) {
    const auto usual = defaults.find(key);
    if (usual == defaults.end() || usual->second != value) out[key] = value;
  }
  return out;
}

std::string settings_text(const Facts& settings) {
  if (settings.empty()) return "";
  std::string lines;
  for (const auto& [key, value] : settings.items())
    lines += fmt::format("{} = {}\n", printable(key), value_text(value));
  return "  settings that differ from the defaults\n" + indented(lines, 4);
}

Facts run_facts(const std::string& folder, const InspectOptions& o) {
  Facts facts{{"path", folder}, {"kind", "run directory"}, {"problems", Facts::array()}};
  const auto has = [&](const char* name) { return is_there(folder + "/" + name); };
  if (has("command.txt"))
    attempt(facts, [&] { facts["command"] = trimmed(read_text(folder + "/command.txt", kMaxText)); });
  if (has("plan.json")) attempt(facts, [&] { add_ranks(facts, folder + "/plan.json"); });
  std::map<std::string, std::string> settings;
  if (has("config.ini")) attempt(facts, [&] { settings = read_settings(folder + "/config.ini"); });
  facts["config"] = settings;
  facts["settings"] = changed_settings(settings);

  int64_t steps = 0;
  Facts last, evaluations = Facts::array();
  if (has("metrics.jsonl")) {
    attempt(facts, [&] {
      for_lines(facts, folder + "/metrics.jsonl", [&](const Facts& line) {
        ++steps;
        last = line;
      });
    });
  }
  if (has("eval.jsonl")) {
    attempt(facts, [&] {
      for_lines(facts, folder + "/eval.jsonl", [&](const Facts& line) { evaluations.push_back(line); });
    });
  }
  facts["steps"] = steps;
  facts["last_metrics"] = last;
  facts["evaluations"] = evaluations;

  const std::string stated = settings.count("checkpoint.dir") > 0 ? settings.at("checkpoint.dir") : "";
  std::error_code ignored;
  const std::string checkpoints =
      !stated.empty() && fs::is_directory(stated, ignored) ? stated : folder + "/checkpoints";
  if (fs::is_directory(checkpoints, ignored)) {
    facts["checkpoints"] = checkpoints_facts(checkpoints, o);
    for (const Facts& p : facts.at("checkpoints").at("problems"))
      facts["problems"].push_back(fmt::format("{}: {}", checkpoints, p.get<std::string>()));
  }
  return facts;
}

std::string run_text(const Facts& f) {
  std::string out;
  if (f.contains("command")) out += fact_row("command", value_text(f.at("command")));
  if (f.contains("ranks")) {
    const Facts& r = f.at("ranks");
    out += fact_row("ranks", fmt::format("{}: {} with the target, {} with the drafter", r.at("ranks").dump(),
                                         r.at("targets").dump(), r.at("drafters").dump()));
  }
  const Facts total = value_or_null(f.at("config"), "train.steps");
  out += fact_row(
      "steps", fmt::format("{}{}", f.at("steps").dump(),
                           total.is_null() || total == "0" ? "" : fmt::format(" of {}", value_text(total))));
  if (!f.at("last_metrics").is_null()) out += fact_row("last", progress_text(f.at("last_metrics")));
  for (const Facts& e : f.at("evaluations")) out += fact_row("held out", progress_text(e));
  out += settings_text(f.at("settings"));
  if (f.contains("checkpoints")) {
    out += fmt::format("  checkpoints in {}\n", f.at("checkpoints").at("path").get<std::string>());
    out += indented(checkpoints_text(f.at("checkpoints")), 2);
  }
  return out;
}

}  // namespace slip
