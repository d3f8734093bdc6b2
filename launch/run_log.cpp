#include "launch/run_log.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/log.hpp"
#include "core/progress.hpp"
#include "device/peak.hpp"
#include "io/durable.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

// Keeps the lines of steps up to `step`: those after it are trained again, and a half-written last line goes.
void cut_after(const std::string& path, int64_t step) {
  std::ifstream in(path);
  if (!in) return;
  std::string kept, line;
  while (std::getline(in, line)) {
    const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
    if (!j.is_object() || !j.contains("step") || j["step"].get<int64_t>() > step) break;
    kept += line + "\n";
  }
  write_text_durably(path, kept);
}

std::vector<double> per_slot(const std::array<double, kMaxBlock>& sums,
                             const std::array<double, kMaxBlock>& counts, int64_t block) {
  std::vector<double> out;
  for (int64_t j = 1; j < block; ++j) {
    const size_t i = static_cast<size_t>(j);
    out.push_back(counts[i] > 0 ? sums[i] / counts[i] : 0);
  }
  return out;
}

nlohmann::ordered_json decoded_json(const DecodedEvaluation& d) {
  nlohmann::ordered_json j = acceptance_json(d.all);
  j["seconds"] = d.seconds;
  j["parity"] = {{"cycles", d.parity.cycles},
                 {"equal", d.parity.equal},
                 {"near_ties", d.parity.near_ties},
                 {"different", d.parity.different},
                 {"largest_gap", d.parity.largest_gap}};
  if (!d.families.empty()) j["families"] = families_json(d.families);
  return j;
}

// The families that gain most come first.
std::string family_table(std::vector<FamilyAcceptance> families) {
  std::stable_sort(families.begin(), families.end(),
                   [](const auto& a, const auto& b) { return a.acceptance.pooled > b.acceptance.pooled; });
  std::string out = "decoded acceptance length by document family: pooled, mean, prompts";
  for (const FamilyAcceptance& f : families) {
    out += fmt::format("\n  {:<12} {:5.2f} {:5.2f} {:5}", f.name, f.acceptance.pooled, f.acceptance.mean,
                       f.acceptance.responses);
  }
  return out;
}

void add_scalars(const std::string& tag, const nlohmann::ordered_json& j, Scalars& out) {
  if (j.is_number()) out.emplace_back(tag, j.get<double>());
  if (j.is_object())
    for (const auto& [name, value] : j.items()) add_scalars(tag + "/" + name, value, out);
  if (j.is_array())
    for (size_t i = 0; i < j.size(); ++i) add_scalars(fmt::format("{}/{}", tag, i + 1), j[i], out);
}

// Every number of a line but the step: train/loss, train/slot_accuracy/1, eval/decoded/pooled, ...
Scalars scalars(const char* tag, nlohmann::ordered_json j) {
  j.erase("step");
  Scalars out;
  add_scalars(tag, j, out);
  return out;
}

// One entry for each source, in the order of plan.json; null where a step had no label of it.
nlohmann::ordered_json sources_json(const StepSums& s, size_t count, LossKind kind) {
  nlohmann::ordered_json j;
  for (size_t i = 0; i < count; ++i) {
    const SourceSums& of = s.source[i];
    const auto number = [&](double x) { return of.valid > 0 ? nlohmann::ordered_json(x) : nullptr; };
    j["documents"].push_back(of.documents);
    j["tokens"].push_back(of.tokens);
    j["labels"].push_back(of.valid);
    j["loss"].push_back(number(of.mean_loss(kind)));
    j["accuracy"].push_back(number(of.accuracy()));
    j["acceptance_length"].push_back(number(of.acceptance_length()));
  }
  return j;
}

// The plan, and what its ranks compute on. The declared peak is left out where ranks may share a GPU.
nlohmann::ordered_json plan_with_device(const RunOptions& o, const std::string& plan_json) {
  nlohmann::ordered_json plan = nlohmann::ordered_json::parse(plan_json);
  const std::string name = o.device == Device::cuda ? gpu_name() : "CPU";
  plan["device"] = {{"name", name}};
  const double peak = o.share_gpu ? 0 : declared_bf16_flops(name);
  if (peak > 0) plan["device"]["declared_bf16_flops"] = peak;
  return plan;
}

// By the plan's count of the work in a row.
double peak_seconds_of_row(const nlohmann::ordered_json& plan) {
  if (!plan["device"].contains("declared_bf16_flops")) return 0;
  const double flops = plan["row"]["target_flops"].get<double>() + plan["row"]["drafter_flops"].get<double>();
  return flops / (plan["device"]["declared_bf16_flops"].get<double>() * plan["ranks"].get<double>());
}

}  // namespace

RunLog::RunLog(const RunOptions& o, const RunInputs& in, const std::string& plan_json, int64_t from_step)
    : kind_(in.rule.kind),
      block_(in.drafter.block),
      every_(o.config.log.every_steps),
      total_(in.state.total_steps),
      dir_(o.config.log.dir),
      terminal_(isatty(STDERR_FILENO) != 0) {
  if ((in.sources.size() > 1 || weighted(in.sources)) && in.sources.size() <= kMaxSources)
    sources_ = in.sources;
  fs::create_directories(dir_ + "/log");
  write_text_durably(dir_ + "/config.ini", print_config(o.config));
  write_text_durably(dir_ + "/command.txt", o.command_line + "\n");
  write_text_durably(dir_ + "/versions.txt", o.versions);
  const nlohmann::ordered_json plan = plan_with_device(o, plan_json);
  write_text_durably(dir_ + "/plan.json", plan.dump(2));
  peak_seconds_of_row_ = peak_seconds_of_row(plan);
  cut_after(dir_ + "/metrics.jsonl", from_step);
  cut_after(dir_ + "/eval.jsonl", from_step);
  const auto open = [&](const char* name) {
    std::FILE* f = std::fopen((dir_ + "/" + name).c_str(), from_step > 0 ? "a" : "w");
    if (f == nullptr) fail(fmt::format("{}/{}: {}", dir_, name, std::strerror(errno)));
    return f;
  };
  metrics_.reset(open("metrics.jsonl"));
  eval_.reset(open("eval.jsonl"));
  // What was written of the steps after from_step is made again; so is the evaluation before the first step.
  if (o.config.log.tensorboard) events_.emplace(dir_, from_step > 0 ? from_step + 1 : 0);
}

RunLog::~RunLog() {
  if (open_line_) std::fputc('\n', stderr);
}

void RunLog::append(std::FILE* f, const std::string& line) {
  if (std::fputs((line + "\n").c_str(), f) < 0 || std::fflush(f) != 0)
    fail(fmt::format("{}: {}", dir_, std::strerror(errno)));
}

void RunLog::step(const StepReport& r) {
  const StepSums& s = r.sums;
  nlohmann::ordered_json j = {{"step", r.step},
                              {"epoch", r.epoch},
                              {"loss", s.mean_loss(kind_)},
                              {"accuracy", s.accuracy()},
                              {"acceptance_length", s.acceptance_length()},
                              {"slot_accuracy", per_slot(s.slot_correct, s.slot_valid, block_)},
                              {"grad_norm", r.grad_norm},
                              {"lr", r.lr},
                              {"rows", s.rows},
                              {"bad_steps", r.bad_steps},
                              {"tokens", s.tokens},
                              {"labels", s.valid},
                              {"draft_positions", s.draft_positions},
                              {"seconds", r.seconds},
                              {"tokens_per_s", s.tokens / r.seconds},
                              {"draft_positions_per_s", s.draft_positions / r.seconds},
                              {"wait_features_s", r.wait_features_s},
                              {"target_wait_share", r.target_wait_share},
                              {"rows_ready", r.rows_ready},
                              {"taps_early_share", r.taps.early_share},
                              {"dump_wait_s", r.dump_wait_s},
                              {"reduce_s", r.reduce_s},
                              {"reduce_exposed_s", r.reduce_exposed_s}};
  j["taps_late_s"] = nullptr;  // not measured
  if (!std::isnan(r.taps.late_s)) j["taps_late_s"] = r.taps.late_s;
  if (peak_seconds_of_row_ > 0) j["peak_share"] = s.rows * peak_seconds_of_row_ / r.seconds;
  if (!sources_.empty()) j["sources"] = sources_json(s, sources_.size(), kind_);
  append(metrics_.get(), j.dump());
  if (events_) events_->add(r.step, scalars("train", j));
  for (size_t i = 0; i < kMaxSources; ++i) by_source_[i] += s.source[i];
  recent_seconds_ += r.seconds;
  recent_tokens_ += s.tokens;
  recent_rows_ += s.rows;
  recent_wait_ += r.wait_features_s;
  recent_exposed_ += r.reduce_exposed_s;
  recent_target_wait_ += r.target_wait_share * r.seconds;
  ++recent_steps_;
  progress(r);
}

void RunLog::progress(const StepReport& r) {
  const auto now = std::chrono::steady_clock::now();
  const bool line = r.step % every_ == 0 || r.step == r.total || now - said_ > std::chrono::seconds(10);
  if (!line && !(terminal_ && now - shown_ > std::chrono::milliseconds(200))) return;
  shown_ = now;
  const double per_step = recent_seconds_ / static_cast<double>(recent_steps_);
  const double of_peak = 100 * recent_rows_ * peak_seconds_of_row_ / recent_seconds_;
  const std::string text = fmt::format(
      "step {}/{}  loss {:.3f}  accuracy {:.3f}  acceptance {:.2f}  grad {:.2f}  lr {:.2e}  {:.0f} "
      "tokens/s{}  "
      "waiting for features {:.0f} %{}{}  left {}",
      r.step, r.total, r.sums.mean_loss(kind_), r.sums.accuracy(), r.sums.acceptance_length(), r.grad_norm,
      r.lr, recent_tokens_ / recent_seconds_,
      of_peak > 0 ? fmt::format("  {:.0f} % of peak", of_peak) : std::string(),
      100 * recent_wait_ / recent_seconds_,
      recent_target_wait_ > 0
          ? fmt::format(", targets for requests {:.0f} %", 100 * recent_target_wait_ / recent_seconds_)
          : std::string(),
      r.reduce_s > 0
          ? fmt::format("  for the sum of gradients {:.1f} %", 100 * recent_exposed_ / recent_seconds_)
          : std::string(),
      clock_text(per_step * static_cast<double>(r.total - r.step)));
  if (terminal_) {
    std::fprintf(stderr, "\r%s\x1b[K", text.c_str());
    std::fflush(stderr);
    open_line_ = true;
    log_quiet_terminal(true);
    if (line) log_info(text);
    log_quiet_terminal(false);
  } else if (line) {
    log_info(text);
  }
  if (line)
    said_ = now, recent_seconds_ = recent_tokens_ = recent_wait_ = recent_target_wait_ = 0,
    recent_rows_ = recent_exposed_ = 0, recent_steps_ = 0;
}

void RunLog::evaluation(int64_t step, const std::optional<StepSums>& sums,
                        const std::optional<DecodedEvaluation>& decoded) {
  nlohmann::ordered_json j = {{"step", step}};
  std::vector<std::string> said;
  if (sums) {
    const StepSums& s = *sums;
    j.update({{"loss", s.mean_loss(kind_)},
              {"accuracy", s.accuracy()},
              {"acceptance_length", s.acceptance_length()},
              {"slot_accuracy", per_slot(s.slot_correct, s.slot_valid, block_)},
              {"slot_loss", per_slot(s.slot_loss, s.slot_valid, block_)},
              {"blocks", s.blocks},
              {"labels", s.valid},
              {"rows", s.rows},
              {"tokens", s.tokens}});
    simulated_.add(s.acceptance_length());
    said.push_back(
        fmt::format("loss {:.3f}, accuracy {:.3f}, simulated acceptance length {:.2f} ({:.0f} blocks)",
                    s.mean_loss(kind_), s.accuracy(), s.acceptance_length(), s.blocks));
  }
  if (decoded) {
    const DecodedEvaluation& d = *decoded;
    j["decoded"] = decoded_json(d);
    decoded_.add(d.all.pooled);
    said.push_back(fmt::format("decoded {:.2f} pooled, {:.2f} mean ({} prompts, {} tokens, {:.1f} s)",
                               d.all.pooled, d.all.mean, d.all.responses, d.all.tokens, d.seconds));
    said.push_back(
        fmt::format("training forward equal in {:.0f} of {:.0f} cycles", d.parity.equal, d.parity.cycles));
    if (d.parity.near_ties > 0)
      said.back() +=
          fmt::format(", {:.0f} near ties (gap up to {:.2g})", d.parity.near_ties, d.parity.largest_gap);
  }
  append(eval_.get(), j.dump());
  if (events_) events_->add(step, scalars("eval", j));
  if (open_line_) std::fputc('\n', stderr), open_line_ = false;
  log_info(fmt::format("held out after step {}: {}", step, fmt::join(said, "; ")));
  if (decoded && step == total_ && !decoded->families.empty()) log_info(family_table(decoded->families));
}

std::string RunLog::sources_text() const {
  if (sources_.empty()) return "";
  double tokens = 0;
  for (const SourceSums& s : by_source_) tokens += s.tokens;
  std::string out = "trained by source: documents, tokens, their share, loss, accuracy, acceptance length";
  for (size_t i = 0; i < sources_.size() && tokens > 0; ++i) {
    const SourceSums& s = by_source_[i];
    out += fmt::format("\n  {:8.0f} {:11.0f} {:5.1f} % {:7.3f} {:6.3f} {:5.2f}  {} (weight {})", s.documents,
                       s.tokens, 100 * s.tokens / tokens, s.mean_loss(kind_), s.accuracy(),
                       s.acceptance_length(), sources_[i].pattern, weight_text(sources_[i].weight));
  }
  return out;
}

std::string RunLog::evaluation_text() const {
  std::string out;
  if (simulated_.first > 0)
    out += fmt::format(", held-out acceptance length {:.2f} -> {:.2f} simulated", simulated_.first,
                       simulated_.last);
  if (decoded_.first > 0)
    out += fmt::format("{} {:.2f} -> {:.2f} decoded", out.empty() ? ", held-out acceptance length" : ",",
                       decoded_.first, decoded_.last);
  return out;
}

}  // namespace slip
