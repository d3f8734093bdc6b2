#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "io/files.hpp"
#include "model/config.hpp"

namespace slip::testing {
namespace {

using nlohmann::json;

// The published form of a drafter of five layers for a target of 36.
json published() {
  return json::parse(R"({
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 16,
    "dflash_config": {"block_size": 16, "mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
    "num_target_layers": 36, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 5,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-06,
    "attention_bias": false, "attention_dropout": 0.0, "max_position_embeddings": 40960,
    "rope_theta": 1000000, "rope_scaling": null, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000},
    "layer_types": ["full_attention", "full_attention", "full_attention", "full_attention", "full_attention"],
    "sliding_window": null, "use_sliding_window": false, "max_window_layers": 5, "initializer_range": 0.02,
    "tie_word_embeddings": false, "vocab_size": 151936, "bos_token_id": 151643, "eos_token_id": 151645,
    "dtype": "bfloat16", "torch_dtype": "bfloat16", "use_cache": true})");
}
json published(const std::string& patch) {
  json config = published();
  config.merge_patch(json::parse(patch));
  return config;
}
const char* const kSliding =
    R"({"layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
  "sliding_attention", "full_attention"], "sliding_window": 2048, "use_sliding_window": true})";

DrafterModel read(const TempFolder& folder, const json& config) {
  return read_drafter_config(write_file(folder / "drafter.json", config.dump()));
}

TargetModel qwen3_8b() {
  return {.model_type = "qwen3",
          .hidden = 4096,
          .intermediate = 12288,
          .layers = 36,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .vocab = 151936,
          .eps = 1e-6f,
          .qk_norm = true,
          .max_position = 40960};
}

struct BadConfig {
  const char* name;
  const char* patch;  // JSON merge patch over the published form: null removes a key
  std::vector<std::string> parts;
};
void PrintTo(const BadConfig& b, std::ostream* os) { *os << b.name; }
class RefusedDrafter : public ::testing::TestWithParam<BadConfig> {};
TEST_P(RefusedDrafter, NamesFileKeyAndValue) {
  const TempFolder folder;
  std::vector<std::string> parts = GetParam().parts;
  parts.push_back(folder / "drafter.json");
  expect_refused([&] { read(folder, published(GetParam().patch)); }, kBadInput, parts);
}
INSTANTIATE_TEST_SUITE_P(
    Configs, RefusedDrafter,
    ::testing::Values(
        // B3
        BadConfig{"TapBeyond",
                  R"({"dflash_config": {"target_layer_ids": [1, 9, 17, 25, 36]}})",
                  {"target_layer_ids", "layer 36", "0..35"}},
        BadConfig{"TapTwice",
                  R"({"dflash_config": {"target_layer_ids": [1, 9, 9, 25, 33]}})",
                  {"target_layer_ids", "layer 9", "twice", "0..35"}},
        BadConfig{"TapNegative",
                  R"({"dflash_config": {"target_layer_ids": [-1, 9, 17, 25, 33]}})",
                  {"target_layer_ids", "layer -1", "0..35"}},
        BadConfig{"NoTaps",
                  R"({"dflash_config": {"target_layer_ids": null}})",
                  {"dflash_config.target_layer_ids is missing"}},
        BadConfig{"EmptyTaps", R"({"dflash_config": {"target_layer_ids": []}})", {"target_layer_ids is []"}},
        BadConfig{"TapText", R"({"dflash_config": {"target_layer_ids": ["1"]}})", {"target_layer_ids"}},
        // B6
        BadConfig{"MaskBeyond",
                  R"({"vocab_size": 16, "dflash_config": {"mask_token_id": 16}})",
                  {"mask_token_id is 16", "0..15", "rows = 16"}},
        BadConfig{"MaskNegative",
                  R"({"vocab_size": 16, "dflash_config": {"mask_token_id": -1}})",
                  {"mask_token_id is -1", "rows = 16"}},
        BadConfig{"NoMask",
                  R"({"dflash_config": {"mask_token_id": null}})",
                  {"dflash_config.mask_token_id is missing"}},
        BadConfig{"NoDflash", R"({"dflash_config": null})", {"dflash_config", "no DFlash drafter"}},
        BadConfig{"NoBlock",
                  R"({"block_size": null, "dflash_config": {"block_size": null}})",
                  {"block_size is missing"}},
        BadConfig{
            "BlocksDiffer", R"({"block_size": 8})", {"block_size is 8", "dflash_config.block_size is 16"}},
        BadConfig{"BlockOfOne",
                  R"({"block_size": 1, "dflash_config": {"block_size": 1}})",
                  {"block_size is 1", "2 to"}},
        BadConfig{
            "AttentionBias", R"({"attention_bias": true})", {"attention_bias is true", "supported: false"}},
        BadConfig{"Partial", R"({"partial_rotary_factor": 0.5})", {"partial_rotary_factor is 0.5"}},
        BadConfig{"PartialNested",
                  R"({"rope_parameters": {"partial_rotary_factor": 0.5}})",
                  {"rope_parameters.partial_rotary_factor is 0.5"}},
        BadConfig{"Scaling",
                  R"({"rope_scaling": {"rope_type": "yarn", "factor": 4}})",
                  {"rope_scaling.rope_type is \"yarn\"", "supported: default"}},
        BadConfig{"Llama3",
                  R"({"rope_scaling": {"rope_type": "llama3", "factor": 4}})",
                  {"\"llama3\"", "supported: default"}},
        BadConfig{"NoTheta", R"({"rope_theta": null, "rope_parameters": null})", {"rope_theta"}},
        BadConfig{"ThetasDiffer",
                  R"({"rope_theta": 10000})",
                  {"rope_parameters.rope_theta is 1000000", "rope_theta is 10000"}},
        BadConfig{
            "SlidingWithoutWindow",
            R"({"use_sliding_window": true, "layer_types": ["sliding_attention", "full_attention", "full_attention", "full_attention", "full_attention"]})",
            {"sliding_window", "block_size = 16"}},
        BadConfig{
            "WindowBelowBlock",
            R"({"sliding_window": 15, "use_sliding_window": true, "layer_types": ["sliding_attention", "full_attention", "full_attention", "full_attention", "full_attention"]})",
            {"sliding_window is 15", "block_size = 16"}},
        BadConfig{
            "SlidingOff",
            R"({"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention", "full_attention", "full_attention", "full_attention"]})",
            {"use_sliding_window is false", "sliding_attention"}},
        BadConfig{"SlidingWithoutLayers",
                  R"({"use_sliding_window": true})",
                  {"use_sliding_window is true", "layer_types"}},
        BadConfig{
            "LinearLayer",
            R"({"layer_types": ["linear_attention", "full_attention", "full_attention", "full_attention", "full_attention"]})",
            {"linear_attention", "supported: full_attention, sliding_attention"}},
        BadConfig{
            "LayerTypesShort", R"({"layer_types": ["full_attention"]})", {"layer_types", "= 5", "found 1"}},
        BadConfig{"CausalDiffers",
                  R"({"is_causal": true, "dflash_config": {"causal": false}})",
                  {"is_causal is true", "dflash_config.causal is false"}},
        BadConfig{"CausalText", R"({"is_causal": "yes"})", {"is_causal is \"yes\""}},
        BadConfig{"Dflash2",
                  R"({"architectures": ["DFlash2DraftModel"]})",
                  {"architectures", "DFlash2DraftModel", "supported: DFlashDraftModel"}},
        BadConfig{"Speculators",
                  R"({"speculators_model_type": "eagle3"})",
                  {"speculators_model_type is \"eagle3\"", "supported: dflash"}},
        BadConfig{"SpeculatorsWithoutLayers",
                  R"({"speculators_model_type": "dflash"})",
                  {"transformer_layer_config is missing"}},
        BadConfig{
            "SpeculatorsTapZero",
            R"({"speculators_model_type": "dflash", "transformer_layer_config": {}, "aux_hidden_state_layer_ids": [0, 2]})",
            {"aux_hidden_state_layer_ids is [0,2]", "1 is the output of layer 0"}},
        BadConfig{"Domino",
                  R"({"dflash_config": {"projector_type": "domino"}})",
                  {"dflash_config.projector_type is \"domino\""}},
        BadConfig{"UseSwa",
                  R"({"dflash_config": {"use_swa": true, "swa_window_size": 64}})",
                  {"dflash_config.use_swa is true"}},
        BadConfig{"Softcap",
                  R"({"dflash_config": {"final_logit_softcapping": 30.0}})",
                  {"final_logit_softcapping is 30"}},
        BadConfig{"EmbeddingScale",
                  R"({"dflash_config": {"input_embedding_scale": 8.0}})",
                  {"input_embedding_scale is 8"}},
        BadConfig{
            "ReducedVocabulary", R"({"draft_vocab_size": 32000})", {"draft_vocab_size is 32000", "151936"}},
        BadConfig{"NoTargetLayers", R"({"num_target_layers": null})", {"num_target_layers is missing"}},
        BadConfig{
            "OtherModel", R"({"model_type": "llama"})", {"model_type is \"llama\"", "supported: qwen3"}},
        BadConfig{"NoHidden", R"({"hidden_size": null})", {"hidden_size is missing"}}),
    [](const auto& i) { return std::string(i.param.name); });

TEST(DrafterConfig, ThePublishedForm) {
  const TempFolder folder;
  const DrafterModel m = read(folder, published());
  EXPECT_EQ(m.block, 16);
  EXPECT_EQ(m.mask_token, 151669);
  EXPECT_EQ(m.taps, (std::vector<int64_t>{1, 9, 17, 25, 33}));
  EXPECT_EQ(m.target_layers, 36);
  EXPECT_EQ(m.sliding, std::vector<bool>(5, false));
  EXPECT_EQ(m.causal, std::vector<bool>(5, false));
  EXPECT_TRUE(m.causal_is_default);
  EXPECT_EQ(m.rope.theta, 1e6);
  EXPECT_EQ(m.eos_token, "151645");
  EXPECT_EQ(m.source, folder / "drafter.json");
  check_fit(m, qwen3_8b(), "target");
  // A folder stands for its config.json.
  write_file(folder / "config.json", published().dump());
  EXPECT_EQ(read_drafter_config(folder.path()).block, 16);
}

TEST(DrafterConfig, MissingFile) {
  expect_refused([] { read_drafter_config("/nonexistent/drafter.json"); }, kBadInput,
                 {"/nonexistent/drafter.json", "No such file"});
}

TEST(DrafterConfig, BlockSizeInEitherPlace) {
  const TempFolder folder;
  EXPECT_EQ(read(folder, published(R"({"block_size": null})")).block, 16);
  EXPECT_EQ(read(folder, published(R"({"dflash_config": {"block_size": null}})")).block, 16);
}

TEST(DrafterConfig, SlidingLayersAreCausalUnlessToldOtherwise) {
  const TempFolder folder;
  json config = published(kSliding);
  const DrafterModel m = read(folder, config);
  EXPECT_EQ(m.window, 2048);
  EXPECT_EQ(m.sliding, (std::vector<bool>{true, true, true, true, false}));
  EXPECT_EQ(m.causal, m.sliding);
  config["is_causal"] = false;
  const DrafterModel open = read(folder, config);
  EXPECT_EQ(open.causal, std::vector<bool>(5, false));
  EXPECT_FALSE(open.causal_is_default);
  config.erase("is_causal");
  config["dflash_config"]["causal"] = true;
  EXPECT_EQ(read(folder, config).causal, std::vector<bool>(5, true));
  config["sliding_window"] = 16;  // as wide as the block
  EXPECT_EQ(read(folder, config).window, 16);
}

// E2: what is written is the published form, key for key, and reads back as the same drafter.
TEST(DrafterConfig, WrittenAsPublished) {
  const TempFolder folder;
  EXPECT_EQ(json::parse(drafter_config_json(read(folder, published()))), published());

  const json sliding = published(kSliding);
  EXPECT_EQ(json::parse(drafter_config_json(read(folder, sliding))), sliding);

  json open = sliding;
  open["is_causal"] = false;
  EXPECT_EQ(json::parse(drafter_config_json(read(folder, open))), open);

  json all_full = published();
  all_full["is_causal"] = false;  // what full layers do anyway: not written
  EXPECT_EQ(json::parse(drafter_config_json(read(folder, all_full))), published());

  json old = published(
      R"({"rope_parameters": null, "dflash_config": {"block_size": null}, "eos_token_id": [1, 2], "bos_token_id": null})");
  json expected = published(R"({"eos_token_id": [1, 2]})");
  expected["bos_token_id"] = nullptr;
  EXPECT_EQ(json::parse(drafter_config_json(read(folder, old))), expected);
}

TEST(DrafterConfig, NumbersAreShort) {
  const TempFolder folder;
  const std::string text = drafter_config_json(read(folder, published()));
  EXPECT_NE(text.find("\"rms_norm_eps\": 1e-06"), std::string::npos) << text;
  EXPECT_NE(text.find("\"rope_theta\": 1000000,"), std::string::npos) << text;
  EXPECT_EQ(text.back(), '\n');
}

TEST(NewDrafterConfig, TapsAndLayersComeFromTheTarget) {
  const TempFolder folder;
  const std::string path = write_file(
      folder / "new.json",
      published(R"({"num_target_layers": null, "dflash_config": {"target_layer_ids": null}})").dump());
  const DrafterModel m = read_new_drafter_config(path, qwen3_8b());
  EXPECT_EQ(m.taps, (std::vector<int64_t>{1, 9, 17, 25, 33}));
  EXPECT_EQ(m.target_layers, 36);
  expect_refused([&] { read_drafter_config(path); }, kBadInput, {path, "num_target_layers"});
  TargetModel small = qwen3_8b();
  small.layers = 4;
  expect_refused([&] { read_new_drafter_config(path, small); }, kUsage, {"0..3"});
  // A list that is there is taken as it is.
  write_file(path, published(R"({"dflash_config": {"target_layer_ids": [2, 3]}})").dump());
  EXPECT_EQ(read_new_drafter_config(path, qwen3_8b()).taps, (std::vector<int64_t>{2, 3}));
}

// B17
TEST(CheckFit, EveryContradictionIsNamed) {
  const TempFolder folder;
  const DrafterModel m = read(folder, published());
  TargetModel t = qwen3_8b();
  t.hidden = 2560;
  expect_refused([&] { check_fit(m, t, "some/target"); }, kUsage,
                 {folder / "drafter.json", "some/target", "hidden_size is 4096", "is 2560"});
  t.vocab = 16;
  t.layers = 30;
  const Complaint c = complaint_of([&] { check_fit(m, t, "some/target"); });
  EXPECT_EQ(c.exit_code, kUsage);
  EXPECT_EQ(c.text.find('\n'), std::string::npos) << c.text;  // five of them in one line
  for (const char* part : {"hidden_size is 4096", "vocab_size is 151936", "num_target_layers is 36",
                           "layer 33", "0..29", "rows = 16"}) {
    EXPECT_NE(c.text.find(part), std::string::npos) << part << " in " << c.text;
  }
}

TEST(CheckFit, TheLastLayerIsAWarning) {
  const TempFolder folder;
  const DrafterModel m = read(folder, published(R"({"dflash_config": {"target_layer_ids": [1, 35]}})"));
  ::testing::internal::CaptureStderr();
  check_fit(m, qwen3_8b(), "target");
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("warning"), std::string::npos);
}

// E1
TEST(DrafterTensors, FiftyEightWithTheirShapes) {
  const TempFolder folder;
  const DrafterModel m = read(folder, published());
  const std::vector<NamedShape> tensors = drafter_tensors(m);
  ASSERT_EQ(tensors.size(), 58u);
  EXPECT_EQ(parameter_count(m), 1'048'626'432);
  std::map<std::string, std::vector<int64_t>> by_name;
  for (const NamedShape& t : tensors) by_name[t.name] = t.shape;
  EXPECT_EQ(by_name.size(), 58u);
  std::map<std::string, std::vector<int64_t>> expected = {
      {"fc.weight", {4096, 20480}}, {"hidden_norm.weight", {4096}}, {"norm.weight", {4096}}};
  for (int l = 0; l < 5; ++l) {
    const std::string layer = "layers." + std::to_string(l) + ".";
    expected[layer + "input_layernorm.weight"] = expected[layer + "post_attention_layernorm.weight"] = {4096};
    expected[layer + "self_attn.q_proj.weight"] = expected[layer + "self_attn.o_proj.weight"] = {4096, 4096};
    expected[layer + "self_attn.k_proj.weight"] = expected[layer + "self_attn.v_proj.weight"] = {1024, 4096};
    expected[layer + "self_attn.q_norm.weight"] = expected[layer + "self_attn.k_norm.weight"] = {128};
    expected[layer + "mlp.gate_proj.weight"] = expected[layer + "mlp.up_proj.weight"] = {12288, 4096};
    expected[layer + "mlp.down_proj.weight"] = {4096, 12288};
  }
  EXPECT_EQ(by_name, expected);
}

TEST(DrafterTensors, TheLargerOne) {
  const TempFolder folder;
  EXPECT_EQ(
      parameter_count(read(
          folder, published(R"({"hidden_size": 5120, "intermediate_size": 17408, "vocab_size": 248320})"))),
      1'730'213'120);
}

}  // namespace
}  // namespace slip::testing
