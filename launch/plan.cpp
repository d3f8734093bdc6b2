#include "launch/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

namespace slip {
namespace {

// nullopt: auto.
std::optional<int> parse_count(const char* key, const std::string& text) {
  if (text == "auto") return std::nullopt;
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) {
    fail_usage(fmt::format("{}={}: a number of ranks or auto is expected", key, text));
  }
  return value;
}

int balanced_targets(int ranks, const PlanCosts& c) {
  const auto slowest = [&](int targets) {
    return std::max(c.target_flops / targets, c.drafter_flops / c.drafter_speed / (ranks - targets));
  };
  int best = 1;
  for (int t = 2; t < ranks; ++t) {
    if (slowest(t) < slowest(best)) best = t;
  }
  return best;
}

// (targets, drafters)
std::pair<int, int> split(int ranks, const RolesConfig& roles, const PlanCosts& c) {
  const std::optional<int> targets = parse_count("roles.targets", roles.targets);
  const std::optional<int> drafters = parse_count("roles.drafters", roles.drafters);
  const std::string asked = fmt::format("roles.targets={}, roles.drafters={}", roles.targets, roles.drafters);
  if (drafters == 0) fail_usage(asked + ": nobody trains; `dump` is the command that runs targets only");
  if (c.offline) {
    if (targets.value_or(0) != 0)
      fail_usage(asked +
                 ": with data.features and without eval.prompts no rank runs the target: roles.targets must "
                 "be 0 or auto");
    if (drafters.value_or(ranks) != ranks) fail_usage(fmt::format("{}: this run has {} ranks", asked, ranks));
    return {0, ranks};
  }
  if (targets == 0)
    fail_usage(asked +
               ": without a target rank the features must come from shards (data.features), and eval.prompts "
               "cannot be decoded");
  if (ranks == 1) {
    if (targets.value_or(1) == 1 && drafters.value_or(1) == 1 && !(targets && drafters)) return {1, 1};
    fail_usage(fmt::format(
        "{}: this run has 1 rank, which does both in turn: leave them auto, or start mpirun -n {}", asked,
        targets.value_or(1) + drafters.value_or(1)));
  }
  const int t = targets ? *targets : drafters ? ranks - *drafters : balanced_targets(ranks, c);
  const int d = drafters ? *drafters : ranks - t;
  if (t < 1 || d < 1 || t + d != ranks) {
    fail_usage(
        targets && drafters
            ? fmt::format("{}: together {} ranks, this run has {} ranks", asked, *targets + *drafters, ranks)
            : fmt::format("{}: this run has {} ranks, and each role needs at least one", asked, ranks));
  }
  return {t, d};
}

void advise(Plan& p, double drafter_speed) {
  const int64_t rows = p.rows_per_step, slots = p.queue_rows * p.drafters;
  if (rows % p.drafters != 0) {
    const int64_t turns = (rows + p.drafters - 1) / p.drafters;
    p.notes.push_back(
        fmt::format("train.rows_per_step={} over {} drafter ranks: a step takes as long as one of {} rows",
                    rows, p.drafters, turns * p.drafters));
  }
  if (p.ranks > 1 && p.targets > 0 && slots - p.drafters < p.targets) {
    p.notes.push_back(
        fmt::format("{} target ranks and {} drafter ranks with roles.queue_rows={}: targets will wait; {} "
                    "keeps all of them at work",
                    p.targets, p.drafters, p.queue_rows, 1 + (p.targets + p.drafters - 1) / p.drafters));
  }
  if (drafter_speed != 1)
    p.notes.push_back(fmt::format("drafters are taken to be {} times as fast in fp8", drafter_speed));
}

}  // namespace

Plan make_plan(int world_size, const RolesConfig& roles, const PlanCosts& costs) {
  require(world_size >= 1 && costs.rows_per_step >= 1, "make_plan: at least one rank and one row a step");
  if (roles.queue_rows < 1) fail_usage(fmt::format("roles.queue_rows={}: at least 1", roles.queue_rows));
  Plan p;
  p.ranks = world_size;
  std::tie(p.targets, p.drafters) = split(world_size, roles, costs);
  p.offline = costs.offline;
  p.target_flops = costs.offline ? 0 : costs.target_flops;
  p.drafter_flops = costs.drafter_flops;
  p.row_bytes = costs.row_bytes;
  p.rows_per_step = costs.rows_per_step;
  p.epoch = costs.epoch;
  p.queue_rows = roles.queue_rows;

  for (int r = 0; r < world_size; ++r) {
    RankPlan& rank = p.rank.emplace_back();
    rank.rank = r;
    const bool both = world_size == 1 && !costs.offline;
    rank.role = both ? Role::both : r < p.drafters ? Role::drafter : Role::target;
    if (rank.role != Role::target) rank.memory = costs.drafter_memory;
    if (rank.role != Role::drafter) {
      rank.memory.insert(rank.memory.end(), costs.target_memory.begin(), costs.target_memory.end());
    }
  }
  if (p.targets > 0 && world_size > 1) {
    // Rows meet the same pair of ranks again after lcm(targets, rows_per_step) of them.
    std::set<std::pair<int, int>> pairs;
    for (int64_t i = 0, period = std::lcm(int64_t{p.targets}, p.rows_per_step); i < period; ++i) {
      pairs.emplace(p.target_rank(i), p.drafter_rank(i % p.rows_per_step));
    }
    for (const auto& [target, drafter] : pairs) {
      p.rank[static_cast<size_t>(target)].peers.push_back(drafter);
      p.rank[static_cast<size_t>(drafter)].peers.push_back(target);
    }
  }
  if (world_size > 1 && p.targets > 0) {
    const double target = p.target_flops / p.targets,
                 drafter = p.drafter_flops / costs.drafter_speed / p.drafters;
    const double slowest = std::max(target, drafter);
    p.target_busy = slowest > 0 ? target / slowest : 1;
    p.drafter_busy = slowest > 0 ? drafter / slowest : 1;
  } else if (world_size == 1 && !costs.offline) {
    const double sum = p.target_flops + p.drafter_flops / costs.drafter_speed;
    p.target_busy = sum > 0 ? p.target_flops / sum : 0.5;
    p.drafter_busy = 1 - p.target_busy;
  } else {
    p.target_busy = 0;
  }
  advise(p, costs.drafter_speed);
  return p;
}

int choose_device(int local_rank, int local_ranks, int visible, bool share) {
  require(local_rank >= 0 && local_rank < local_ranks, "choose_device: a rank outside its host");
  if (visible < 1) {
    fail_usage("no CUDA device is visible: check CUDA_VISIBLE_DEVICES and the driver, or use --device cpu");
  }
  if (visible == 1) return 0;
  if (local_ranks > visible && !share) {
    fail_usage(fmt::format("{} ranks, {} devices on this host: start fewer ranks there, or --share-gpu",
                           local_ranks, visible));
  }
  return local_rank % visible;
}

}  // namespace slip
