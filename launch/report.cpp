#include "launch/report.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "core/check.hpp"
#include "io/durable.hpp"
#include "io/json_file.hpp"
#include "launch/report_html.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;
using Columns = std::map<std::string, std::vector<double>>;

constexpr size_t kPoints = 1000;  // of a curve: more would not be seen

std::string read_text(const std::string& path) {
  std::ifstream in(path);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

// Five digits are enough for a picture and keep the page small.
json rounded(double x) {
  if (!std::isfinite(x)) return nullptr;
  return std::stod(fmt::format("{:.5g}", x));
}

// Calls f(object) for every whole line.
template <class F> void for_lines(const std::string& path, F&& f) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const json j = json::parse(line, nullptr, false);
    if (j.is_object()) f(j);
  }
}

json settings_of(const std::string& ini) {
  json out = json::object();
  std::istringstream in(ini);
  std::string section;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line[0] == '[') {
      section = line.substr(1, line.find(']') - 1) + ".";
      continue;
    }
    const size_t at = line.find('=');
    if (at == std::string::npos) continue;
    const auto trimmed = [](std::string s) {
      s.erase(0, s.find_first_not_of(' '));
      s.erase(s.find_last_not_of(' ') + 1);
      return s;
    };
    out[section + trimmed(line.substr(0, at))] = trimmed(line.substr(at + 1));
  }
  return out;
}

struct Metrics {
  Columns columns;
  std::vector<std::vector<double>> slots;  // per step
  std::vector<json> sources;               // per step, of runs that tell sources apart
  size_t steps() const {
    const auto at = columns.find("step");
    return at == columns.end() ? 0 : at->second.size();
  }
};

Metrics read_metrics(const std::string& path) {
  static const char* const kNames[] = {"step",       "loss",       "accuracy",         "acceptance_length",
                                       "lr",         "grad_norm",  "tokens",           "seconds",
                                       "rows",       "bad_steps",  "wait_features_s",  "target_wait_share",
                                       "peak_share", "rows_ready", "reduce_exposed_s", "dump_wait_s"};
  Metrics m;
  for_lines(path, [&](const json& j) {
    for (const char* name : kNames) {
      const auto at = j.find(name);
      m.columns[name].push_back(at != j.end() && at->is_number() ? at->get<double>() : std::nan(""));
    }
    m.sources.push_back(j.value("sources", json::object()));
    const auto slots = j.find("slot_accuracy");
    m.slots.push_back(slots != j.end() && slots->is_array() ? slots->get<std::vector<double>>()
                                                            : std::vector<double>());
  });
  return m;
}

double sum(const std::vector<double>& v, size_t first, size_t end) {
  double s = 0;
  for (size_t i = first; i < end; ++i) s += v[i];
  return s;
}

// Means over stretches of steps of equal number, so that a page has at most kPoints of a curve.
json curves(const Metrics& m) {
  json out = json::object();
  const size_t n = m.steps(), per = (n + kPoints - 1) / kPoints;
  for (size_t first = 0; first < n; first += per) {
    const size_t end = std::min(n, first + per);
    const auto mean = [&](const char* name) {
      return sum(m.columns.at(name), first, end) / static_cast<double>(end - first);
    };
    const double seconds = sum(m.columns.at("seconds"), first, end);
    out["step"].push_back(m.columns.at("step")[end - 1]);
    for (const char* name : {"loss", "accuracy", "acceptance_length", "lr", "grad_norm", "target_wait_share",
                             "peak_share", "rows_ready"})
      out[name].push_back(rounded(mean(name)));
    out["tokens_per_s"].push_back(rounded(sum(m.columns.at("tokens"), first, end) / seconds));
    out["drafter_wait_share"].push_back(rounded(sum(m.columns.at("wait_features_s"), first, end) / seconds));
    json slots = json::array();
    for (size_t s = 0; s < m.slots[first].size(); ++s) {
      double total = 0;
      for (size_t i = first; i < end; ++i) total += s < m.slots[i].size() ? m.slots[i][s] : 0;
      slots.push_back(rounded(total / static_cast<double>(end - first)));
    }
    out["slot_accuracy"].push_back(slots);
  }
  return out;
}

double target_idle_s(const Metrics& m) {
  double sum = 0;
  for (size_t i = 0; i < m.steps(); ++i)
    sum += m.columns.at("target_wait_share")[i] * m.columns.at("seconds")[i];
  return sum;
}

// Seconds of all steps by what a rank of each role did, the largest first after its own work; a role's sum is
// the sum of the steps. What was not measured (older runs) is left out.
json time_by_role(const Metrics& m, const json& plan) {
  const size_t n = m.steps();
  const auto& c = m.columns;
  const double all = sum(c.at("seconds"), 0, n);
  const auto parts = [&](const char* work, std::vector<std::pair<const char*, double>> others) {
    std::erase_if(others, [](const auto& o) { return !(o.second > 0); });
    std::sort(others.begin(), others.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    double rest = all;
    for (const auto& o : others) rest -= o.second;
    json out = json::array({json::array({work, rounded(std::max(0.0, rest))})});
    for (const auto& [name, seconds] : others) out.push_back({name, rounded(seconds)});
    return out;
  };
  if (!plan.is_object() || plan.value("ranks", 0) < 1) return json::object();
  const bool alone = plan.value("ranks", 0) == 1, offline = plan.value("offline", false);
  const std::pair dump{"waiting for the disk of the dump", sum(c.at("dump_wait_s"), 0, n)},
      features{"waiting for features", sum(c.at("wait_features_s"), 0, n)},
      sums{"sums over drafters, not hidden", sum(c.at("reduce_exposed_s"), 0, n)};
  if (alone && !offline) return {{"target and drafter in turn", parts("at work", {features, dump})}};
  json out = {{"drafters", parts("forward, backward, update", {features, sums})}};
  if (!offline) out["targets"] = parts("forward", {{"waiting for requests", target_idle_s(m)}, dump});
  return out;
}

json totals(const Metrics& m, const json& plan, const json& settings) {
  const size_t n = m.steps(), tenth = n - (n + 9) / 10;
  json out = {{"step", 0}, {"seconds", 0}};
  const auto total = settings.find("train.steps");
  out["total_steps"] = total == settings.end() ? "?" : total->get<std::string>();
  if (n == 0) return out;
  const auto& c = m.columns;
  const double seconds = sum(c.at("seconds"), 0, n);
  const auto late = [&](const char* name) {
    return rounded(sum(c.at(name), tenth, n) / static_cast<double>(n - tenth));
  };
  out["step"] = c.at("step")[n - 1];
  out["seconds"] = rounded(seconds);
  out["loss"] = late("loss");
  out["accuracy"] = late("accuracy");
  out["tokens_per_s"] = rounded(sum(c.at("tokens"), 0, n) / seconds);
  out["drafter_wait"] = rounded(sum(c.at("wait_features_s"), 0, n) / seconds);
  out["target_wait"] = rounded(target_idle_s(m) / seconds);
  out["bad_steps"] = c.at("bad_steps")[n - 1];
  if (plan.is_object() && plan.contains("row")) {
    const double flops = plan["row"].value("target_flops", 0.0) + plan["row"].value("drafter_flops", 0.0);
    out["flops_per_s"] = rounded(flops * sum(c.at("rows"), 0, n) / seconds);
    const double peak = plan.value("device", json::object()).value("declared_bf16_flops", 0.0) *
                        static_cast<double>(plan.value("ranks", 0));
    if (peak > 0) out["peak_share"] = rounded(flops * sum(c.at("rows"), 0, n) / seconds / peak);
  }
  out["time"] = time_by_role(m, plan);
  return out;
}

// What was trained of each source: documents and tokens of all steps; loss, accuracy and acceptance length as
// the mean of the last tenth of the steps, each by its labels.
json sources_of(const Metrics& m, const json& plan) {
  json out = json::array();
  const json names = plan.is_object() && plan.contains("epoch")
                         ? plan["epoch"].value("sources", json::array())
                         : json::array();
  const size_t n = m.steps(), tenth = n - (n + 9) / 10;
  for (size_t s = 0; s < names.size() && n > 0; ++s) {
    const auto number = [&](size_t step, const char* name) {
      const auto all = m.sources[step].find(name);
      if (all == m.sources[step].end() || !all->is_array() || s >= all->size()) return 0.0;
      return (*all)[s].is_number() ? (*all)[s].template get<double>() : 0.0;
    };
    double documents = 0, tokens = 0, labels = 0;
    std::map<std::string, double> late;
    for (size_t i = 0; i < n; ++i) {
      documents += number(i, "documents");
      tokens += number(i, "tokens");
      if (i < tenth) continue;
      labels += number(i, "labels");
      for (const char* name : {"loss", "accuracy", "acceptance_length"})
        late[name] += number(i, name) * number(i, "labels");
    }
    if (m.sources[n - 1].empty()) continue;
    json of = {{"source", names[s].value("source", "?")},
               {"weight", names[s].value("weight", 1.0)},
               {"documents", documents},
               {"tokens", tokens}};
    for (const auto& [name, sum] : late) of[name] = labels > 0 ? rounded(sum / labels) : json();
    out.push_back(of);
  }
  return out;
}

// JSON that cannot end the script it stands in.
std::string within_script(const std::string& data) {
  std::string out;
  for (const char c : data) {
    if (c == '/' && !out.empty() && out.back() == '<') out += '\\';
    out += c;
  }
  return out;
}

json run_of(const std::string& directory) {
  if (!fs::exists(directory + "/metrics.jsonl"))
    fail_input(fmt::format("{}: no metrics.jsonl: not a run directory (log.dir of `train`)", directory));
  const fs::path path = fs::path(directory).lexically_normal();
  const std::string name = path.has_filename() ? path.filename() : path.parent_path().filename();
  const json plan = fs::exists(directory + "/plan.json") ? read_json_file(directory + "/plan.json") : json();
  const json settings = settings_of(read_text(directory + "/config.ini"));
  const Metrics metrics = read_metrics(directory + "/metrics.jsonl");
  json evaluations = json::array();
  for_lines(directory + "/eval.jsonl", [&](const json& j) { evaluations.push_back(j); });
  return {{"name", name},
          {"directory", directory},
          {"written", fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(std::time(nullptr)))},
          {"command", read_text(directory + "/command.txt")},
          {"versions", read_text(directory + "/versions.txt")},
          {"config", settings},
          {"plan", plan},
          {"totals", totals(metrics, plan, settings)},
          {"metrics", curves(metrics)},
          {"sources", sources_of(metrics, plan)},
          {"evaluations", evaluations}};
}

}  // namespace

std::string report_page(const std::vector<std::string>& run_directories) {
  json runs = json::array();
  for (const std::string& d : run_directories) runs.push_back(run_of(d));
  const std::string data = runs.dump(-1, ' ', false, json::error_handler_t::replace);
  const std::string page = kReportHtml, mark = "/*RUNS*/";
  const size_t at = page.find(mark);
  return page.substr(0, at) + within_script(data) + page.substr(at + mark.size());
}

void write_report(const std::vector<std::string>& run_directories, const std::string& path) {
  write_text_durably(path, report_page(run_directories));
}

}  // namespace slip
