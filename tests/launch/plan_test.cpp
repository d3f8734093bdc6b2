#include "launch/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/check.hpp"

namespace slip {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

PlanCosts costs(double target, double drafter, int64_t rows_per_step = 8) {
  return {
      .target_flops = target, .drafter_flops = drafter, .row_bytes = 1 << 20, .rows_per_step = rows_per_step};
}
RolesConfig roles(const std::string& targets, const std::string& drafters, int64_t queue = 2) {
  return {.targets = targets, .drafters = drafters, .queue_rows = queue};
}
const RolesConfig kAuto;

std::string refusal(int ranks, const RolesConfig& r, const PlanCosts& c = costs(1, 1)) {
  try {
    make_plan(ranks, r, c);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), kUsage) << e.what();
    return e.what();
  }
  return "accepted";
}

TEST(Plan, OneRankDoesBoth) {
  const Plan p = make_plan(1, kAuto, costs(43, 72));
  EXPECT_EQ(p.role(0), Role::both);
  EXPECT_EQ(p.target_rank(17), 0);
  EXPECT_EQ(p.drafter_rank(5), 0);
  EXPECT_TRUE(p.rank[0].peers.empty());
  EXPECT_EQ(make_plan(1, roles("1", "auto"), costs(1, 1)).role(0), Role::both);
  EXPECT_NEAR(p.drafter_busy, 72.0 / 115, 1e-12);
}

TEST(Plan, AutoBalances) {
  // (ranks, target FLOPs, drafter FLOPs) -> targets
  const std::tuple<int, double, double, int> cases[] = {
      {2, 43, 72, 1},   {4, 43, 72, 2},  {8, 43, 72, 3},  // Qwen3-8B: 5 drafters for 3 targets
      {8, 198, 126, 5},                                   // Qwen3.6-27B
      {4, 1, 1, 2},     {8, 1, 1, 4},    {3, 1, 1, 1},    // a tie: more drafters
      {5, 1, 1, 2},                                       // a tie
      {8, 1000, 1, 7},  {8, 1, 1000, 1}, {8, 0, 1, 1},   {4, 1, 0, 3}};
  for (const auto& [ranks, target, drafter, expected] : cases) {
    const Plan p = make_plan(ranks, kAuto, costs(target, drafter));
    EXPECT_EQ(p.targets, expected) << ranks << " ranks, " << target << " : " << drafter;
    EXPECT_EQ(p.targets + p.drafters, ranks);
  }
}

TEST(Plan, FasterDraftersAreFewer) {
  PlanCosts c = costs(58.4, 73.8);
  EXPECT_EQ(make_plan(3, kAuto, c).targets, 1);
  EXPECT_TRUE(make_plan(3, kAuto, c).notes.empty());
  c.drafter_speed = 1.45;
  const Plan p = make_plan(3, kAuto, c);
  EXPECT_EQ(p.targets, 2);
  EXPECT_NEAR(p.target_busy, 58.4 / 2 / (73.8 / 1.45), 1e-12);
  EXPECT_EQ(p.drafter_flops, 73.8);
  EXPECT_NEAR(make_plan(1, kAuto, c).drafter_busy, 73.8 / (73.8 + 1.45 * 58.4), 1e-12);
  EXPECT_THAT(p.notes, Contains(HasSubstr("1.45 times as fast")));
}

TEST(Plan, DraftersFirstAndEveryRowHasOneOfEach) {
  for (const int ranks : {2, 4, 8}) {
    for (int targets = 1; targets < ranks; ++targets) {
      const int64_t rows = 7;
      const Plan p = make_plan(ranks, roles(std::to_string(targets), "auto"), costs(1, 1, rows));
      ASSERT_EQ(p.drafters, ranks - targets);
      std::set<std::pair<int, int>> pairs;
      for (int64_t i = 0; i < 500; ++i) {
        const int t = p.target_rank(i), d = p.drafter_rank(i % rows);
        ASSERT_EQ(p.role(t), Role::target);
        ASSERT_EQ(p.role(d), Role::drafter);
        ASSERT_LT(d, p.drafters);
        pairs.emplace(t, d);
      }
      std::set<std::pair<int, int>> named;
      for (const RankPlan& r : p.rank) {
        for (const int peer : r.peers)
          r.role == Role::target ? named.emplace(r.rank, peer) : named.emplace(peer, r.rank);
      }
      EXPECT_EQ(named, pairs);
    }
  }
}

TEST(Plan, SomePairsNeverMeet) {
  const Plan p = make_plan(4, roles("2", "2"), costs(1, 1, 8));
  EXPECT_EQ(p.rank[2].peers, (std::vector<int>{0}));
  EXPECT_EQ(p.rank[3].peers, (std::vector<int>{1}));
  EXPECT_EQ(make_plan(4, roles("2", "2"), costs(1, 1, 7)).rank[2].peers, (std::vector<int>{0, 1}));
}

TEST(Plan, FixedRoles) {
  EXPECT_EQ(make_plan(8, roles("5", "3"), costs(1, 1)).targets, 5);
  EXPECT_EQ(make_plan(8, roles("5", "auto"), costs(1, 1)).drafters, 3);
  EXPECT_EQ(make_plan(8, roles("auto", "3"), costs(1, 1)).targets, 5);
}

TEST(Plan, RolesThatDoNotAddUpAreRefused) {
  EXPECT_THAT(refusal(4, roles("2", "3")), AllOf(HasSubstr("roles.targets=2"), HasSubstr("roles.drafters=3"),
                                                 HasSubstr("5"), HasSubstr("4 ranks")));
  EXPECT_THAT(refusal(4, roles("1", "2")), HasSubstr("4 ranks"));
  EXPECT_THAT(refusal(4, roles("4", "auto")), AllOf(HasSubstr("roles.targets=4"), HasSubstr("4 ranks")));
  EXPECT_THAT(refusal(4, roles("auto", "4")), HasSubstr("roles.drafters=4"));
  EXPECT_THAT(refusal(4, roles("auto", "5")), HasSubstr("roles.drafters=5"));
  EXPECT_THAT(refusal(4, roles("0", "4")), AllOf(HasSubstr("roles.targets=0"), HasSubstr("data.features")));
  EXPECT_THAT(refusal(4, roles("4", "0")), HasSubstr("nobody trains"));
  EXPECT_THAT(refusal(1, roles("1", "1")), HasSubstr("mpirun -n 2"));
  EXPECT_THAT(refusal(1, roles("auto", "3")), HasSubstr("1 rank"));
  for (const char* text : {"two", "", "-1", "2.5", "1x", "99999999999"}) {
    EXPECT_THAT(refusal(4, roles(text, "auto")), AllOf(HasSubstr("roles.targets="), HasSubstr(text))) << text;
  }
  EXPECT_THAT(refusal(2, roles("1", "1", 0)), HasSubstr("roles.queue_rows=0"));
}

TEST(Plan, OfflineEveryRankIsADrafter) {
  PlanCosts c = costs(43, 72);
  c.offline = true;
  for (const int ranks : {1, 4}) {
    for (const char* targets : {"0", "auto"}) {
      const Plan p = make_plan(ranks, roles(targets, "auto"), c);
      EXPECT_EQ(p.targets, 0);
      EXPECT_EQ(p.drafters, ranks);
      for (const RankPlan& r : p.rank) EXPECT_EQ(r.role, Role::drafter);
    }
  }
  EXPECT_THAT(refusal(4, roles("1", "3"), c), HasSubstr("roles.targets=1"));
  EXPECT_THAT(refusal(4, roles("0", "3"), c), HasSubstr("4 ranks"));
}

TEST(Plan, NotesSayWhatWouldStandIdle) {
  EXPECT_TRUE(make_plan(4, roles("2", "2"), costs(1, 1, 8)).notes.empty());
  const Plan odd = make_plan(8, roles("5", "3"), costs(1, 1, 8));
  ASSERT_EQ(odd.notes.size(), 2u);
  EXPECT_THAT(odd.notes[0], AllOf(HasSubstr("train.rows_per_step=8"), HasSubstr("9 rows")));
  EXPECT_THAT(odd.notes[1], AllOf(HasSubstr("roles.queue_rows=2"), HasSubstr("3 keeps")));
  EXPECT_EQ(make_plan(8, roles("5", "3", 3), costs(1, 1, 9)).notes.size(), 0u);
}

TEST(Plan, TextAndJson) {
  PlanCosts c = costs(43e12, 72e12);
  c.target_memory = {{"target.weights", 1 << 20}};
  c.drafter_memory = {{"drafter.weights", 3 << 20}, {"mailbox.slots", 5 << 20}};
  const Plan p = make_plan(4, roles("1", "3"), c);
  const std::string text = plan_text(p), memory = plan_memory_text(p);
  EXPECT_THAT(memory, HasSubstr("mailbox.slots"));
  EXPECT_EQ(text.find("mailbox.slots"), std::string::npos);  // the run's log has its own table
  EXPECT_THAT(text, AllOf(HasSubstr("3 drafters, 1 target\n"), HasSubstr("rank 3: target, sends to 0, 1, 2"),
                          HasSubstr("8.00 MiB"), HasSubstr("43 TFLOP")));
  const auto json = nlohmann::json::parse(plan_json(p));
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["rank"][3]["role"], "target");
  EXPECT_EQ(json["rank"][3]["sends_to"], (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(json["rank"][0]["hears_from"], (std::vector<int>{3}));
  EXPECT_EQ(json["rank"][0]["memory"]["mailbox.slots"], 5 << 20);
  EXPECT_EQ(json["rank"][0]["memory_bytes"], 8 << 20);
  EXPECT_EQ(json["row"]["drafter_flops"], 72e12);
}

TargetModel qwen3_8b() {
  return {.model_type = "qwen3",
          .hidden = 4096,
          .intermediate = 12288,
          .layers = 36,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .vocab = 151936};
}
DrafterModel drafter(int64_t hidden, int64_t intermediate, int64_t vocab, int64_t block = 16) {
  return {.hidden = hidden,
          .intermediate = intermediate,
          .layers = 5,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .vocab = vocab,
          .block = block,
          .taps = {1, 9, 17, 25, 33},
          .sliding = std::vector<bool>(5, false),
          .causal = std::vector<bool>(5, false)};
}

// dflash.md 9.2, computed there by hand from the same architecture.
TEST(Costs, TheTablesOfTheMethod) {
  EXPECT_NEAR(target_row_flops(qwen3_8b(), 33, {.tokens = 3072}) / 1e12, 43, 0.5);
  EXPECT_NEAR(drafter_row_flops(drafter(4096, 12288, 151936), {.tokens = 3072, .blocks = 512}) / 1e12, 72,
              0.5);
  EXPECT_NEAR(drafter_row_flops(drafter(5120, 17408, 248320), {.tokens = 4096, .blocks = 512}) / 1e12, 126,
              0.5);
  EXPECT_NEAR(drafter_row_flops(drafter(4096, 12288, 151936, 8), {.tokens = 4096, .blocks = 512}) / 1e12, 37,
              0.5);
  EXPECT_NEAR(drafter_row_flops(drafter(5120, 17408, 248320, 8), {.tokens = 4096, .blocks = 512}) / 1e12, 63,
              1);
}

// target-models.md 11: 0.766 GFLOP a token in the products of a gated delta net layer of Qwen3.6-27B and
// 0.744 in those of an attention layer, 48.70 in all; attention over 4096 tokens 0.81 in 16 layers.
TEST(Costs, AHybridTarget) {
  TargetModel m{.model_type = "qwen3_5",
                .hidden = 5120,
                .intermediate = 17408,
                .layers = 64,
                .heads = 24,
                .kv_heads = 4,
                .head_dim = 256,
                .vocab = 248320,
                .attention_gate = true,
                .delta = {.key_heads = 16, .value_heads = 48, .key_dim = 128, .value_dim = 128, .taps = 4}};
  for (int l = 0; l < 64; ++l) m.linear.push_back(l % 4 != 3);
  const RowShape row{.tokens = 4096};
  const double delta = gated_delta_flops(m.delta), attention = 2.0 * 24 * 256 * 4096;
  EXPECT_NEAR(delta / 1e6, 7.6, 0.1);
  EXPECT_NEAR((target_row_flops(m, 0, row) / 4096 - delta) / 1e9, 0.766, 0.0005);
  EXPECT_NEAR((target_row_flops(m, 3, row) - target_row_flops(m, 2, row)) / 4096 / 1e9 - attention / 1e9,
              0.744, 0.0005);
  EXPECT_NEAR((target_row_flops(m, 63, row) / 4096 - 48 * delta) / 1e9, 48.70 + 0.81, 0.01);
}

// configs/qwen3.6-27b.ini on a node: rows of 4096 tokens with 512 blocks, 24 a step.
TEST(Costs, TheDefaultSplitOfQwen36) {
  const std::string configs = SLIP_SOURCE_DIR "/configs/";
  const TargetModel target = read_target_config(configs + "models/qwen3.6-27b");
  const DrafterModel d = read_new_drafter_config(configs + "qwen3.6-27b-drafter.json", target);
  check_fit(d, target, "qwen3.6-27b");
  EXPECT_EQ(d.taps, (std::vector<int64_t>{1, 16, 31, 46, 61}));
  EXPECT_EQ(d.taps, default_taps(target.layers, 5));
  EXPECT_EQ(d.sliding, (std::vector<bool>{true, true, true, true, false}));
  EXPECT_EQ(d.window, 2048);
  const RowShape row{.tokens = 4096, .blocks = 512};
  const Plan p = make_plan(8, {},
                           {.target_flops = target_row_flops(target, 61, row),
                            .drafter_flops = drafter_row_flops(d, row),
                            .rows_per_step = 24});
  EXPECT_EQ(p.targets, 5);
  EXPECT_EQ(p.drafters, 3);
  EXPECT_GT(p.target_busy, 0.9);
  EXPECT_EQ(p.drafter_busy, 1);
}

TEST(Costs, PackingAndWindowsShortenAttentionOnly) {
  const RowShape one{.tokens = 4096, .blocks = 512}, packed{.tokens = 4096, .documents = 4, .blocks = 512};
  const double attention = 4096.0 * 34 * 2 * 4096 * 4096;
  EXPECT_NEAR(target_row_flops(qwen3_8b(), 33, one) - target_row_flops(qwen3_8b(), 33, packed),
              attention * 3 / 4, attention * 1e-6);
  DrafterModel full = drafter(4096, 12288, 151936), sliding = full;
  sliding.sliding.assign(5, true);
  sliding.window = 1024;
  // mean keys 2048 against 1024 - 1024^2 / 8192 = 896
  const double pairs = 3.5 * 5 * 512 * 16 * 4 * 4096.0;
  EXPECT_NEAR(drafter_row_flops(full, one) - drafter_row_flops(sliding, one), pairs * (2048 - 896), pairs);
  sliding.window = 1 << 20;
  EXPECT_EQ(drafter_row_flops(full, one), drafter_row_flops(sliding, one));
}

TEST(Device, G3ChoiceTable) {
  EXPECT_EQ(choose_device(3, 4, 4), 3);
  EXPECT_EQ(choose_device(3, 4, 1), 0);  // per-task mask
  const auto refused = [](int rank, int ranks, int visible) -> std::string {
    try {
      return std::to_string(choose_device(rank, ranks, visible));
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), kUsage);
      return e.what();
    }
  };
  EXPECT_THAT(refused(5, 6, 4), AllOf(HasSubstr("6 ranks, 4 devices"), HasSubstr("--share-gpu")));
  EXPECT_THAT(refused(0, 6, 4), HasSubstr("6 ranks, 4 devices"));  // all ranks say the same
  EXPECT_THAT(refused(0, 1, 0), HasSubstr("no CUDA device"));
  EXPECT_EQ(choose_device(5, 6, 4, true), 1);
  EXPECT_EQ(choose_device(1, 2, 8), 1);
}

}  // namespace
}  // namespace slip
