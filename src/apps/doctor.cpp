// `doctor`: is this machine, with this launcher, fit to train? Each complaint comes with its remedy.
#include "apps/doctor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/commands.hpp"
#include "apps/version.hpp"
#include "comm/collectives.hpp"
#include "comm/heartbeat.hpp"
#include "core/log.hpp"

namespace slip {
namespace {

constexpr double kTimeout = 60;
const char* const kNames[] = {"ok", "warn", "FAIL"};

using nlohmann::ordered_json;

ordered_json json_of(const Finding& f) {
  return {{"health", static_cast<int>(f.health)}, {"what", f.what}, {"found", f.found}, {"remedy", f.remedy}};
}
Finding finding_of(const ordered_json& j) {
  return {static_cast<Health>(j.at("health").get<int>()), j.at("what"), j.at("found"), j.at("remedy")};
}

// Every rank's text, on rank 0; elsewhere empty.
std::vector<std::string> gathered(const Comm& world, const std::string& mine) {
  const Deadline deadline = deadline_in(kTimeout);
  if (world.rank() != 0) {
    send(world, 0, 1, static_cast<int64_t>(mine.size()), deadline, "the size of a rank's findings");
    send_bytes(world, 0, 2, mine.data(), static_cast<int64_t>(mine.size()), deadline, "a rank's findings");
    return {};
  }
  std::vector<std::string> all = {mine};
  for (int r = 1; r < world.size(); ++r) {
    const int64_t size = recv<int64_t>(world, r, 1, deadline, "the size of a rank's findings");
    all.emplace_back(static_cast<size_t>(size), ' ');
    recv_bytes(world, r, 2, all.back().data(), size, deadline, "a rank's findings");
  }
  return all;
}

// "ranks 0-3" for those that found the same.
std::string ranks_text(const std::vector<int>& ranks, int size) {
  if (static_cast<int>(ranks.size()) == size) return size == 1 ? "" : "all ranks: ";
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) ++end;
    out += fmt::format("{}{}{}", i > 0 ? "," : "", ranks[i],
                       end > i ? fmt::format("-{}", ranks[end]) : std::string());
    i = end + 1;
  }
  return out + ": ";
}

struct Line {
  Finding finding;
  std::vector<int> ranks;
};

// In the order in which rank 0 looked; the same finding of several ranks is one line.
std::vector<Line> merged(const std::vector<std::string>& of_rank) {
  std::vector<Line> lines;
  for (size_t r = 0; r < of_rank.size(); ++r) {
    for (const ordered_json& j : ordered_json::parse(of_rank[r])) {
      const Finding f = finding_of(j);
      const auto same = std::find_if(lines.begin(), lines.end(), [&](const Line& l) {
        return l.finding.what == f.what && l.finding.found == f.found && l.finding.health == f.health;
      });
      if (same != lines.end()) {
        same->ranks.push_back(static_cast<int>(r));
        continue;
      }
      const auto after =
          std::find_if(lines.rbegin(), lines.rend(), [&](const Line& l) { return l.finding.what == f.what; });
      lines.insert(after == lines.rend() ? lines.end() : after.base(), Line{f, {static_cast<int>(r)}});
    }
  }
  return lines;
}

void print(const std::vector<Line>& lines, int size) {
  for (const Line& l : lines) {
    const Finding& f = l.finding;
    // What rank 0 alone says is about all of them.
    const bool only = l.ranks == std::vector<int>{0} &&
                      std::count_if(lines.begin(), lines.end(),
                                    [&](const Line& o) { return o.finding.what == f.what; }) == 1;
    std::cout << fmt::format("{:<5} {:<14} {}{}\n", kNames[static_cast<int>(f.health)], f.what,
                             only ? "" : ranks_text(l.ranks, size), f.found);
    if (f.health != Health::ok) std::cout << fmt::format("{:<20} -> {}\n", "", f.remedy);
  }
}

std::string json_text(const std::vector<Line>& lines, int64_t failures) {
  ordered_json out = {{"failures", failures}, {"findings", ordered_json::array()}};
  for (const Line& l : lines) {
    out["findings"].push_back({{"health", kNames[static_cast<int>(l.finding.health)]},
                               {"what", l.finding.what},
                               {"ranks", l.ranks},
                               {"found", l.finding.found},
                               {"remedy", l.finding.remedy}});
  }
  return out.dump(2);
}

// Programs that differ between ranks misunderstand each other's messages.
Finding compare_versions(const MpiSession& mpi) {
  const Facts facts = version_facts();
  const Difference d = compare_facts(mpi, facts, deadline_in(kTimeout));
  if (!d.found.empty()) return {Health::fail, "versions", d.found, d.remedy};
  std::string one;
  for (const auto& [name, value] : facts) one += fmt::format("{}{} {}", one.empty() ? "" : ", ", name, value);
  return {Health::ok, "versions", one, ""};
}

}  // namespace

int run_doctor(const Arguments& arguments, int& argc, char**& argv) {
  std::string folder = ".";
  bool json = false;
  Options options(
      "doctor", "[--dir FOLDER] [--json]",
      "Looks at what a run needs, on every rank that it is started on: the launcher's promise, versions, "
      "cores and limits,\nGPUs and who has which, messages by MPI and NCCL, and the folder that a run "
      "writes to. Each complaint names its remedy.\nStart it as the run will be started. Exit code 1 when "
      "something would break a run.");
  options.text("dir", &folder, "folder that runs or dumps are written to").flag("json", &json, "print JSON");
  if (!options.parse(arguments)) return kOk;
  const LauncherEnv env = launcher_env([](const char* name) -> const char* { return std::getenv(name); });
  MpiSession mpi(argc, argv, env);
  log_init(mpi.rank(), mpi.size());
  mpi.keep(start_heartbeat(mpi, {}));
  Findings mine, shared;
  if (mpi.rank() == 0)
    mine.push_back({Health::ok, "ranks",
                    fmt::format("{} on {} host{}{}", mpi.size(), mpi.size() / mpi.local_size(),
                                mpi.size() > mpi.local_size() ? "s" : "",
                                mpi.heartbeat() != nullptr && mpi.size() > 1 ? ", signs of life arrive" : ""),
                    ""});
  const Finding versions = compare_versions(mpi);
  if (mpi.rank() == 0) mine.push_back(versions);
  look_at_launch(mpi, mine);
  look_at_limits(mine);
  look_at_environment(mine);
  const int device = look_at_gpu(mpi, mine);
  look_at_mpi(mpi, shared);
  look_at_nccl(mpi, device, shared);
  if (mpi.local_rank() == 0) look_at_folder(folder, mine);
  for (const Finding& f : shared) mine.push_back(f);
  ordered_json list = ordered_json::array();
  for (const Finding& f : mine) list.push_back(json_of(f));
  const std::vector<std::string> all = gathered(mpi.world(), list.dump());
  int64_t failures = 0;
  if (mpi.rank() == 0) {
    const std::vector<Line> lines = merged(all);
    failures = std::count_if(lines.begin(), lines.end(),
                             [](const Line& l) { return l.finding.health == Health::fail; });
    if (json)
      std::cout << json_text(lines, failures) << "\n";
    else
      print(lines, mpi.size());
  }
  broadcast(mpi.world(), 0, &failures, sizeof failures, deadline_in(kTimeout), "the verdict");
  return failures == 0 ? kOk : kFailed;
}

}  // namespace slip
