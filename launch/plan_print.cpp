// A plan as text for the terminal and as JSON for plan.json.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "launch/plan.hpp"

namespace slip {
namespace {

const char* role_name(Role r) {
  return r == Role::target ? "target" : r == Role::drafter ? "drafter" : "target and drafter in turn";
}

std::string count(int n, const char* what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); }

double mib(int64_t bytes) { return static_cast<double>(bytes) / 0x1p20; }

int64_t total(const std::vector<Arena::Entry>& memory) {
  int64_t sum = 0;
  for (const Arena::Entry& e : memory) sum += e.bytes;
  return sum;
}

std::string memory_table(std::vector<Arena::Entry> memory) {
  std::stable_sort(memory.begin(), memory.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::string out;
  for (const Arena::Entry& e : memory) out += fmt::format("{:>14.2f} MiB  {}\n", mib(e.bytes), e.name);
  return out;
}

// Without sources (plans that know no data): nothing.
std::string epoch_text(const EpochSize& e) {
  if (e.sources.empty()) return "";
  std::string out = fmt::format("an epoch: {} documents, {} tokens in {} rows, {} steps\n", e.drawn.documents,
                                e.drawn.tokens, e.rows, e.steps);
  if (e.sources.size() == 1 && e.sources[0].weight == kWeightOnce) return out;
  for (const EpochSize::Part& s : e.sources) {
    out += fmt::format("  {:5.1f} % of the tokens: {} (weight {}), {} documents of {}\n",
                       100 * static_cast<double>(s.drawn.tokens) / static_cast<double>(e.drawn.tokens),
                       s.pattern, weight_text(s.weight), s.drawn.documents, s.there.documents);
  }
  return out;
}

nlohmann::ordered_json epoch_json(const EpochSize& e) {
  nlohmann::ordered_json sources = nlohmann::ordered_json::array();
  for (const EpochSize::Part& s : e.sources) {
    sources.push_back({{"source", s.pattern},
                       {"weight", static_cast<double>(s.weight) / static_cast<double>(kWeightOnce)},
                       {"documents_there", s.there.documents},
                       {"tokens_there", s.there.tokens},
                       {"documents", s.drawn.documents},
                       {"tokens", s.drawn.tokens}});
  }
  return {{"documents", e.drawn.documents},
          {"tokens", e.drawn.tokens},
          {"rows", e.rows},
          {"steps", e.steps},
          {"sources", sources}};
}

}  // namespace

std::string plan_text(const Plan& p) {
  std::string out = count(p.ranks, "rank");
  if (p.offline) {
    out += ", drafters only: features come from shards\n";
  } else if (p.ranks == 1) {
    out += ", target and drafter in turn\n";
  } else {
    out += ": " + count(p.drafters, "drafter") + ", " + count(p.targets, "target") + "\n";
  }
  if (!p.offline) {
    out += fmt::format("a row: target {:.4g} TFLOP, drafter {:.4g} TFLOP, features {:.2f} MiB\n",
                       p.target_flops / 1e12, p.drafter_flops / 1e12, mib(p.row_bytes));
    out += fmt::format("expected at work, at equal speed: targets {:.0f} %, drafters {:.0f} % of the time\n",
                       p.target_busy * 100, p.drafter_busy * 100);
  } else {
    out += fmt::format("a row: drafter {:.4g} TFLOP, features {:.2f} MiB\n", p.drafter_flops / 1e12,
                       mib(p.row_bytes));
  }
  out += epoch_text(p.epoch);
  if (p.ranks > 1) {
    out += fmt::format("row r of a step is trained by rank r mod {}", p.drafters);
    if (!p.offline)
      out += fmt::format(", row i of an epoch comes from rank {} + i mod {}", p.drafters, p.targets);
    out += "\n";
  }
  for (const RankPlan& r : p.rank) {
    out += fmt::format("rank {}: {}", r.rank, role_name(r.role));
    if (!r.peers.empty()) {
      out += fmt::format(", {} {}", r.role == Role::target ? "sends to" : "hears from",
                         fmt::join(r.peers, ", "));
    }
    if (!r.memory.empty()) out += fmt::format(", {:.2f} MiB", mib(total(r.memory)));
    out += "\n";
  }
  for (const std::string& note : p.notes) out += "note: " + note + "\n";
  return out;
}

std::string plan_memory_text(const Plan& p) {
  std::string out;
  const RankPlan* before = nullptr;
  for (const RankPlan& r : p.rank) {  // ranks of a role hold the same: the table once
    if (before == nullptr || before->role != r.role)
      out += fmt::format("memory of a {} rank\n", role_name(r.role)) + memory_table(r.memory);
    before = &r;
  }
  return out;
}

std::string plan_json(const Plan& p) {
  using Json = nlohmann::ordered_json;
  Json ranks = Json::array();
  for (const RankPlan& r : p.rank) {
    Json memory = Json::object();
    for (const Arena::Entry& e : r.memory) memory[e.name] = memory.value(e.name, int64_t{0}) + e.bytes;
    ranks.push_back({{"rank", r.rank},
                     {"role", r.role == Role::both ? "both" : role_name(r.role)},
                     {r.role == Role::target ? "sends_to" : "hears_from", r.peers},
                     {"memory_bytes", total(r.memory)},
                     {"memory", memory}});
  }
  const Json out = {{"ranks", p.ranks},
                    {"targets", p.targets},
                    {"drafters", p.drafters},
                    {"offline", p.offline},
                    {"rows_per_step", p.rows_per_step},
                    {"queue_rows", p.queue_rows},
                    {"row",
                     {{"target_flops", p.target_flops},
                      {"drafter_flops", p.drafter_flops},
                      {"feature_bytes", p.row_bytes}}},
                    {"epoch", epoch_json(p.epoch)},
                    {"expected_busy", {{"targets", p.target_busy}, {"drafters", p.drafter_busy}}},
                    {"notes", p.notes},
                    {"rank", ranks}};
  return out.dump(2);
}

}  // namespace slip
