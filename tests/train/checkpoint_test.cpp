// Checkpoints: what is written is what is read, whole or not at all; and what may not change on resume.
#include "train/checkpoint.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/config.hpp"
#include "core/random.hpp"
#include "io/files.hpp"
#include "io/safetensors.hpp"

namespace slip::testing {
namespace {
namespace fs = std::filesystem;
using ::testing::HasSubstr;

DrafterModel five_layers() {
  DrafterModel m{.hidden = 8,
                 .intermediate = 12,
                 .layers = 5,
                 .heads = 2,
                 .kv_heads = 1,
                 .head_dim = 4,
                 .vocab = 20,
                 .block = 4,
                 .mask_token = 19,
                 .target_layers = 36,
                 .taps = {1, 9, 17, 25, 33},
                 .sliding = std::vector<bool>(5, false),
                 .causal = std::vector<bool>(5, false)};
  m.max_position = 64;
  m.rope.theta = 10000;
  return m;
}

class Checkpoints : public ::testing::Test {
 protected:
  Checkpoints() {
    for (auto* flat : {&optimizer.master, &optimizer.m, &optimizer.v}) {
      for (int64_t i = 0; i < layout.count; ++i)
        flat->push_back(random_normal(7, flat == &optimizer.m, next++));
    }
    optimizer.master[3] = -0.0f;
    optimizer.m[5] = 1e-42f;  // not normal
    state = {.step = 12,
             .epoch = 3,
             .epoch_step = 2,
             .bad_steps = 4,
             .bad_in_a_row = 1,
             .total_steps = 40,
             .documents = 9,
             .tokens = 1234};
    state.config = {{"train.lr", "0.0006"}, {"data.tokens", "模型 ø/日本 語.h5"}};
  }
  std::string save(int64_t step, int64_t keep = 0) {
    state.step = step;
    return save_with({.newest = keep});
  }
  std::string save_with(const KeepRule& rule) {
    return save_checkpoint(folder / "c", model, layout,
                           {optimizer.master.data(), optimizer.m.data(), optimizer.v.data()}, state, rule);
  }
  std::vector<std::string> names() {
    std::vector<std::string> out;
    for (const auto& e : fs::directory_iterator(folder / "c")) out.push_back(e.path().filename());
    std::sort(out.begin(), out.end());
    return out;
  }
  // The file of a checkpoint with one byte changed.
  void flip(const std::string& path) {
    std::string bytes = read_file(path);
    bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 1);
    write_file(path, bytes);
  }

  TempFolder folder;
  DrafterModel model = five_layers();
  ParameterLayout layout = parameter_layout(model);
  SavedOptimizer optimizer;
  TrainerState state;
  uint64_t next = 0;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_F(Checkpoints, SaysHowManyBytesWent) {
  int64_t moved = 0;
  SaveHooks hooks;
  hooks.moved = [&](int64_t bytes) { moved += bytes; };
  save_checkpoint(folder / "c", model, layout,
                  {optimizer.master.data(), optimizer.m.data(), optimizer.v.data()}, state, {}, hooks);
  EXPECT_GE(static_cast<double>(moved), SaveHooks::bytes(layout));
  EXPECT_LE(static_cast<double>(moved), SaveHooks::bytes(layout) + 2e5);  // headers and the small files
}

TEST_F(Checkpoints, ComesBackToTheBit) {
  const std::string path = save(12);
  EXPECT_EQ(path, folder / "c/step-00000012");
  EXPECT_EQ(newest_checkpoint(folder / "c"), path);
  EXPECT_EQ(read_file(folder / "c/latest"), "step-00000012\n");
  EXPECT_EQ(checkpoint_problem(path, true), "");
  const LoadedCheckpoint back = load_checkpoint(path, layout);
  EXPECT_TRUE(same_bits(back.optimizer.master, optimizer.master));
  EXPECT_TRUE(same_bits(back.optimizer.m, optimizer.m));
  EXPECT_TRUE(same_bits(back.optimizer.v, optimizer.v));
  EXPECT_EQ(drafter_config_json(back.drafter), drafter_config_json(model));
  const TrainerState& s = back.state;
  EXPECT_EQ((std::vector<int64_t>{s.step, s.epoch, s.epoch_step, s.bad_in_a_row, s.bad_steps, s.total_steps,
                                  s.documents, s.tokens}),
            (std::vector<int64_t>{12, 3, 2, 1, 4, 40, 9, 1234}));
  EXPECT_EQ(s.config, state.config);
}

TEST_F(Checkpoints, TheDrafterIsFiftyEightTensorsInBf16) {
  const SafetensorsFile file(save(12) + "/drafter/model.safetensors");
  ASSERT_EQ(file.tensors().size(), 58u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  for (const NamedShape& t : drafter_tensors(model)) {
    const TensorInfo* found = file.find(t.name);
    ASSERT_NE(found, nullptr) << t.name;
    EXPECT_EQ(found->shape, t.shape) << t.name;
    EXPECT_EQ(found->dtype, Dtype::bf16) << t.name;
    std::vector<Bf16> bits(static_cast<size_t>(found->count()));
    file.read(*found, bits.data());
    const ParameterLayout::Entry& e = layout.at(t.name);
    for (size_t i = 0; i < bits.size(); ++i) {
      ASSERT_EQ(bits[i].bits, to_bf16(optimizer.master[static_cast<size_t>(e.offset) + i]).bits)
          << t.name << "[" << i << "]";
    }
  }
  // it can be started from
  std::vector<float> rounded = optimizer.master;
  for (float& x : rounded) x = round_bf16(x);
  EXPECT_TRUE(same_bits(published_parameters(layout, folder / "c/step-00000012/drafter"), rounded));
}

TEST_F(Checkpoints, TheManifestNamesEveryFile) {
  const std::string path = save(12);
  const auto manifest = nlohmann::json::parse(read_file(path + "/manifest.json"));
  std::set<std::string> listed, there;
  for (const auto& f : manifest["files"]) listed.insert(f["name"]);
  for (const auto& e : fs::recursive_directory_iterator(path)) {
    if (e.is_regular_file()) there.insert(fs::relative(e.path(), path));
  }
  there.erase("manifest.json");
  EXPECT_EQ(listed, there);
}

TEST_F(Checkpoints, KeepsTheNewest) {
  for (const int64_t step : {5, 10, 15, 20}) save(step, 2);
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000015", "step-00000020"}));
  save(25, 0);
  EXPECT_EQ(names().size(), 4u);
  // an older step saved again stays: it is the one that was just written
  const std::string again = save(7, 1);
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000007", "step-00000025"}));
  EXPECT_EQ(checkpoint_problem(again, true), "");
}

TEST_F(Checkpoints, KeepsTheBest) {
  const auto save_decoded = [&](int64_t step, double acceptance, const KeepRule& keep) {
    state.step = step;
    state.decoded_acceptance = acceptance;
    return save_with(keep);
  };
  const auto best = [&] { return read_file(folder / "c/best"); };
  const KeepRule rule{.newest = 1, .best = 2};
  save_decoded(5, 2.5, rule);
  save_decoded(10, 3.5, rule);
  save_decoded(15, 1.5, rule);
  EXPECT_EQ(best(), "step-00000010\n");
  save_decoded(20, 0, rule);  // not decoded: never among the best
  EXPECT_EQ(names(),
            (std::vector<std::string>{"best", "latest", "step-00000005", "step-00000010", "step-00000020"}));
  save_decoded(25, 3.5, rule);  // as good, and newer
  EXPECT_EQ(best(), "step-00000025\n");
  EXPECT_EQ(names(), (std::vector<std::string>{"best", "latest", "step-00000010", "step-00000025"}));
  EXPECT_EQ(read_file(folder / "c/latest"), "step-00000025\n");
  save_decoded(30, 2, {.newest = 1, .every = 10});
  EXPECT_EQ(names(), (std::vector<std::string>{"best", "latest", "step-00000010", "step-00000030"}));
}

TEST_F(Checkpoints, UnfinishedOnesAreNoCheckpoints) {
  EXPECT_EQ(newest_checkpoint(folder / "c"), std::nullopt);  // no folder at all
  const std::string good = save(5);
  const std::string killed = save(10);
  fs::rename(killed, killed + ".partial");
  EXPECT_EQ(newest_checkpoint(folder / "c"), good);
  const std::string bare = save(15);
  fs::remove(bare + "/manifest.json");
  EXPECT_EQ(newest_checkpoint(folder / "c"), good);
  EXPECT_THAT(checkpoint_problem(bare, false), HasSubstr("manifest.json"));
  write_file(folder / "c/step-00000099", "a file");
  write_file(folder / "c/step-tomorrow", "a file");
  EXPECT_EQ(newest_checkpoint(folder / "c"), good);
  // the next save of the step that was killed succeeds
  EXPECT_EQ(newest_checkpoint(folder / "c"), good);
  const std::string again = save(10);
  EXPECT_EQ(newest_checkpoint(folder / "c"), again);
  EXPECT_FALSE(fs::exists(again + ".partial"));
}

TEST_F(Checkpoints, DamageIsNamed) {
  for (const char* name : {"drafter/config.json", "drafter/model.safetensors", "state/optimizer.safetensors",
                           "state/trainer.json"}) {
    const std::string path = save(12), file = path + "/" + name;
    const std::string bytes = read_file(file);
    flip(file);
    EXPECT_EQ(checkpoint_problem(path, false), "") << name;  // sizes only
    EXPECT_THAT(checkpoint_problem(path, true), AllOf(HasSubstr(name), HasSubstr("checksum")));
    expect_refused([&] { load_checkpoint(path, layout); }, kBadInput, {path, name, "checksum"});
    write_file(file, bytes.substr(0, bytes.size() - 10));
    EXPECT_THAT(checkpoint_problem(path, false),
                AllOf(HasSubstr(name), HasSubstr(std::to_string(bytes.size())),
                      HasSubstr(std::to_string(bytes.size() - 10))));
    EXPECT_EQ(newest_checkpoint(folder / "c"), std::nullopt) << name;
    fs::remove(file);
    EXPECT_THAT(checkpoint_problem(path, false), AllOf(HasSubstr(name), HasSubstr("missing")));
    expect_refused([&] { load_checkpoint(path, layout); }, kBadInput, {path, name, "missing"});
  }
  const std::string path = save(12);
  for (const char* text : {"", "{", "[]", R"({"version": 9, "files": []})", R"({"version": 1})",
                           R"({"version": 1, "files": [{}]})"}) {
    write_file(path + "/manifest.json", text);
    EXPECT_THAT(checkpoint_problem(path, false), HasSubstr("manifest")) << text;
  }
}

TEST_F(Checkpoints, AnotherDrafterDoesNotFit) {
  const std::string path = save(12);
  DrafterModel wider = model;
  wider.intermediate = 16;
  expect_refused([&] { load_checkpoint(path, parameter_layout(wider)); }, kBadInput,
                 {"optimizer.safetensors", "mlp.gate_proj.weight", "[12, 8]", "[16, 8]"});
}

TEST(Resume, NamesBothValues) {
  TrainerState saved;
  saved.documents = 10, saved.tokens = 500;
  Config config;
  const auto keep = [&](TrainerState& s) {
    fields(config, [&](const char* key, const auto& value, const char*) {
      s.config[key] = fmt::format("{}", value);
    });
  };
  keep(saved);
  TrainerState now = saved;
  EXPECT_TRUE(resume_contradictions(saved, now).empty());
  config.train.lr = 1e-3;
  config.train.rows_per_step = 16;
  config.data.seed = 5;
  keep(now);
  now.documents = 11;
  const std::vector<std::string> wrong = resume_contradictions(saved, now);
  EXPECT_THAT(wrong, ::testing::UnorderedElementsAre(
                         AllOf(HasSubstr("train.lr"), HasSubstr("0.0006"), HasSubstr("0.001")),
                         AllOf(HasSubstr("train.rows_per_step"), HasSubstr("8"), HasSubstr("16")),
                         AllOf(HasSubstr("data.seed"), HasSubstr("0"), HasSubstr("5")),
                         AllOf(HasSubstr("documents"), HasSubstr("10"), HasSubstr("11"))));
}

TEST(Resume, OtherWeightsAreRefused) {
  TrainerState saved, now;
  now.config[kWeightsKey] = "1";
  EXPECT_TRUE(resume_contradictions(saved, now).empty());  // a checkpoint from before weights
  now.config[kWeightsKey] = "2 for 10 documents";
  EXPECT_THAT(resume_contradictions(saved, now),
              ::testing::ElementsAre(AllOf(HasSubstr("weights of data.tokens: the checkpoint has 1,"),
                                           HasSubstr("says 2 for 10 documents"))));
  saved.config[kWeightsKey] = now.config[kWeightsKey];
  EXPECT_TRUE(resume_contradictions(saved, now).empty());
  now.config.erase(kWeightsKey);
  EXPECT_EQ(resume_contradictions(saved, now).size(), 1u);
}

TEST(Resume, WhereAndHowFastIsFree) {
  TrainerState saved, now;
  for (const char* key :
       {"roles.targets", "roles.queue_rows", "log.dir", "checkpoint.every_steps", "eval.tokens",
        "comm.timeout_s", "train.blocks_per_pass", "train.max_minutes", "target.path", "data.tokens"}) {
    saved.config[key] = "1";
    now.config[key] = "2";
  }
  EXPECT_TRUE(resume_contradictions(saved, now).empty());
  saved.config["train.precision"] = now.config["train.precision"] = "fp8";
  EXPECT_THAT(resume_contradictions(saved, now), ElementsAre(HasSubstr("train.blocks_per_pass")));
  // Everything else is not: a key that is added later is guarded until somebody says it is free.
  const Config config;
  int guarded = 0;
  fields(config, [&](const char* key, const auto&, const char*) {
    TrainerState a, b;
    a.config[key] = "1", b.config[key] = "2";
    guarded += !resume_contradictions(a, b).empty();
  });
  EXPECT_GT(guarded, 15);
}

}  // namespace
}  // namespace slip::testing
