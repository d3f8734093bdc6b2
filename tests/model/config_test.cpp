#include "model/config.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/files.hpp"

namespace slip::testing {
namespace {

using nlohmann::json;

const std::string kGolden = SLIP_SOURCE_DIR "/tests/golden/";

json qwen3() { return json::parse(read_file(kGolden + "tiny-qwen3/config.json")); }
json qwen3_5() { return json::parse(read_file(kGolden + "tiny-qwen3_5/config.json")); }

TargetModel read(const TempFolder& folder, const json& config) {
  write_file(folder / "config.json", config.dump());
  return read_target_config(folder.path());
}

struct BadConfig {
  const char* name;
  const char* patch;  // JSON merge patch over tiny-qwen3: null removes a key
  std::vector<std::string> parts;
};
void PrintTo(const BadConfig& b, std::ostream* os) { *os << b.name; }
class RefusedTarget : public ::testing::TestWithParam<BadConfig> {};
TEST_P(RefusedTarget, NamesFileKeyAndValue) {
  const TempFolder folder;
  json config = qwen3();
  config.merge_patch(json::parse(GetParam().patch));
  std::vector<std::string> parts = GetParam().parts;
  parts.push_back(folder / "config.json");
  expect_refused([&] { read(folder, config); }, kBadInput, parts);
}
INSTANTIATE_TEST_SUITE_P(
    Configs, RefusedTarget,
    ::testing::Values(
        BadConfig{"NoModelType", R"({"model_type": null})", {"model_type is missing"}},
        BadConfig{"Gpt",
                  R"({"model_type": "gpt_oss"})",
                  {"model_type is \"gpt_oss\"", "supported: qwen3, llama, qwen3_5"}},
        BadConfig{"HybridMoe", R"({"model_type": "qwen3_5_moe"})", {"\"qwen3_5_moe\"", "qwen3_5 (dense"}},
        BadConfig{"Next", R"({"model_type": "qwen3_next"})", {"\"qwen3_next\"", "qwen3_5 (dense"}},
        BadConfig{"HybridWithoutText", R"({"model_type": "qwen3_5"})", {"text_config is missing"}},
        BadConfig{"Moe", R"({"model_type": "qwen3_moe"})", {"\"qwen3_moe\"", "supported"}},
        BadConfig{
            "AttentionBias", R"({"attention_bias": true})", {"attention_bias is true", "supported: false"}},
        BadConfig{"MlpBias", R"({"mlp_bias": true})", {"mlp_bias is true"}},
        BadConfig{"BiasIsText", R"({"mlp_bias": "false"})", {"mlp_bias is \"false\""}},
        BadConfig{"SlidingWindow", R"({"use_sliding_window": true})", {"use_sliding_window is true"}},
        BadConfig{"Gelu", R"({"hidden_act": "gelu"})", {"hidden_act is \"gelu\"", "supported: silu"}},
        BadConfig{"Quantized",
                  R"({"quantization_config": {"quant_method": "fp8"}})",
                  {"quantization_config", "fp8", "supported"}},
        BadConfig{
            "LayerTypes",
            R"({"layer_types": ["full_attention", "full_attention", "linear_attention", "full_attention"]})",
            {"layer_types", "linear_attention", "layer 2", "supported: full_attention"}},
        BadConfig{"LayerTypesShort",
                  R"({"layer_types": ["full_attention"]})",
                  {"layer_types", "num_hidden_layers = 4", "found 1"}},
        BadConfig{"Tensorparallel", R"({"pretraining_tp": 2})", {"pretraining_tp is 2"}},
        BadConfig{"Partial", R"({"partial_rotary_factor": 0.25})", {"partial_rotary_factor is 0.25"}},  // B18
        BadConfig{"PartialNested",
                  R"({"rope_parameters": {"rope_theta": 1000000, "partial_rotary_factor": 0.25}})",
                  {"rope_parameters.partial_rotary_factor is 0.25"}},
        BadConfig{
            "NoTheta", R"({"rope_theta": null})", {"rope_theta", "missing", "rope_parameters.rope_theta"}},
        BadConfig{"ThetaZero", R"({"rope_theta": 0})", {"rope_theta is 0"}},
        BadConfig{"ThetaText", R"({"rope_theta": "1e6"})", {"rope_theta is \"1e6\""}},
        BadConfig{"ThetasDiffer",
                  R"({"rope_parameters": {"rope_theta": 10000}})",
                  {"rope_parameters.rope_theta is 10000", "rope_theta is 1000000"}},
        BadConfig{"Yarn",
                  R"({"rope_scaling": {"rope_type": "yarn", "factor": 4}})",
                  {"rope_scaling.rope_type is \"yarn\"", "supported: default, llama3"}},
        BadConfig{"LegacyLinear",
                  R"({"rope_scaling": {"type": "linear", "factor": 4}})",
                  {"rope_scaling.type is \"linear\""}},
        BadConfig{"DynamicNew",
                  R"({"rope_parameters": {"rope_type": "dynamic", "factor": 4}})",
                  {"rope_parameters.rope_type is \"dynamic\""}},
        BadConfig{"TypesDiffer",
                  R"({"rope_scaling": {"rope_type": "llama3", "type": "default", "factor": 8}})",
                  {"rope_scaling.type is \"default\"", "llama3"}},
        BadConfig{
            "NoRopeType", R"({"rope_scaling": {"factor": 4}})", {"rope_scaling", "rope_type is missing"}},
        BadConfig{"Mrope",
                  R"({"rope_parameters": {"rope_theta": 1000000, "mrope_section": [2, 1, 1]}})",
                  {"mrope_section"}},
        BadConfig{"RopePerLayer",
                  R"({"rope_parameters": {"full_attention": {"rope_theta": 1000000}}})",
                  {"rope_parameters.full_attention"}},
        BadConfig{
            "Llama3WithoutLow",
            R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "high_freq_factor": 4, "original_max_position_embeddings": 64}})",
            {"rope_scaling.low_freq_factor is missing"}},
        BadConfig{
            "Llama3Inverted",
            R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4, "original_max_position_embeddings": 64}})",
            {"high_freq_factor is 4"}},
        BadConfig{"NoHidden", R"({"hidden_size": null})", {"hidden_size is missing"}},
        BadConfig{"HiddenText", R"({"hidden_size": "64"})", {"hidden_size is \"64\"", "integer"}},
        BadConfig{"HiddenFraction", R"({"hidden_size": 64.5})", {"hidden_size is 64.5"}},
        BadConfig{"HiddenNegative", R"({"hidden_size": -64})", {"hidden_size is -64"}},
        BadConfig{"HiddenHuge",
                  R"({"hidden_size": 18446744073709551615})",
                  {"hidden_size is 18446744073709551615"}},
        BadConfig{"LayersHuge", R"({"num_hidden_layers": 2000000000})", {"num_hidden_layers is 2000000000"}},
        BadConfig{"KvHeads",
                  R"({"num_key_value_heads": 3})",
                  {"num_key_value_heads is 3", "num_attention_heads (4)"}},
        BadConfig{"HeadDimUnknown", R"({"head_dim": null, "hidden_size": 66})", {"head_dim", "66", "4"}},
        BadConfig{"HeadDimOdd", R"({"head_dim": 33})", {"33", "even"}},
        BadConfig{"NoEps", R"({"rms_norm_eps": null})", {"rms_norm_eps is missing"}},
        BadConfig{"EpsZero", R"({"rms_norm_eps": 0})", {"rms_norm_eps is 0"}},
        BadConfig{"NoVocab", R"({"vocab_size": null})", {"vocab_size is missing"}}),
    [](const auto& i) { return std::string(i.param.name); });

// The same over tiny-qwen3_5, whose keys lie in text_config.
class RefusedHybrid : public ::testing::TestWithParam<BadConfig> {};
TEST_P(RefusedHybrid, NamesFileKeyAndValue) {
  const TempFolder folder;
  json config = qwen3_5();
  config.merge_patch(json::parse(GetParam().patch));
  std::vector<std::string> parts = GetParam().parts;
  parts.push_back(folder / "config.json");
  expect_refused([&] { read(folder, config); }, kBadInput, parts);
}
INSTANTIATE_TEST_SUITE_P(
    Configs, RefusedHybrid,
    ::testing::Values(
        BadConfig{"TextIsMoe",
                  R"({"text_config": {"model_type": "qwen3_5_moe_text"}})",
                  {"text_config.model_type is \"qwen3_5_moe_text\"", "supported: qwen3_5_text"}},
        BadConfig{"Experts",
                  R"({"text_config": {"num_experts": 256}})",
                  {"text_config.num_experts is 256", "supported: dense"}},
        BadConfig{"Quantized",
                  R"({"quantization_config": {"quant_method": "fp8"}})",
                  {"quantization_config", "fp8", "supported: BF16"}},
        BadConfig{"QuantizedInside",
                  R"({"text_config": {"quantization_config": {"quant_method": "awq"}}})",
                  {"text_config.quantization_config", "awq", "supported: BF16"}},
        BadConfig{
            "LayerTypes",
            R"({"text_config": {"layer_types": ["linear_attention", "sliding_attention", "linear_attention", "full_attention"]}})",
            {"text_config.layer_types", "sliding_attention", "layer 1",
             "supported: linear_attention, full_attention"}},
        BadConfig{"LayerTypesLong",
                  R"({"text_config": {"num_hidden_layers": 3}})",
                  {"text_config.layer_types", "num_hidden_layers = 3", "found 4"}},
        BadConfig{"NoGate", R"({"text_config": {"attn_output_gate": false}})", {"attn_output_gate is false"}},
        BadConfig{"GateType",
                  R"({"text_config": {"output_gate_type": "tanh"}})",
                  {"output_gate_type is \"tanh\"", "supported: silu, swish, sigmoid"}},
        BadConfig{"ValueHeads",
                  R"({"text_config": {"linear_num_value_heads": 5}})",
                  {"linear_num_value_heads is 5", "linear_num_key_heads (2)"}},
        BadConfig{"KeyDim",
                  R"({"text_config": {"linear_key_head_dim": 512}})",
                  {"linear_key_head_dim is 512", "supported: 1 to 256"}},
        BadConfig{"Conv",
                  R"({"text_config": {"linear_conv_kernel_dim": 9}})",
                  {"linear_conv_kernel_dim is 9", "supported: 1 to 8"}},
        BadConfig{"Tied",
                  R"({"text_config": {"tie_word_embeddings": true}})",
                  {"text_config.tie_word_embeddings is true", "false"}},
        BadConfig{"NoTheta",
                  R"({"text_config": {"rope_parameters": {"rope_theta": null}}})",
                  {"text_config.rope_theta", "missing"}},
        BadConfig{"Yarn",
                  R"({"text_config": {"rope_parameters": {"rope_type": "yarn"}}})",
                  {"rope_parameters.rope_type is \"yarn\"", "supported: default"}},
        BadConfig{"PartialTwice",
                  R"({"text_config": {"partial_rotary_factor": 0.5}})",
                  {"rope_parameters.partial_rotary_factor is 0.25", "partial_rotary_factor is 0.5"}},
        BadConfig{"PartialLarge",
                  R"({"text_config": {"rope_parameters": {"partial_rotary_factor": 1.5}}})",
                  {"partial_rotary_factor is 1.5", "at most 1"}},
        BadConfig{"PartialOdd",
                  R"({"text_config": {"rope_parameters": {"partial_rotary_factor": 0.1}}})",
                  {"head_dim 32", "partial_rotary_factor 0.1", "is 3"}}),
    [](const auto& i) { return std::string(i.param.name); });

TEST(TargetConfig, TinyQwen35) {
  const TargetModel m = read_target_config(kGolden + "tiny-qwen3_5");
  EXPECT_EQ(m.model_type, "qwen3_5");
  EXPECT_EQ(m.hidden, 64);
  EXPECT_EQ(m.head_dim, 32);
  EXPECT_EQ(m.linear, (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(m.delta.key_heads, 2);
  EXPECT_EQ(m.delta.value_heads, 6);
  EXPECT_EQ(m.delta.key_dim, 16);
  EXPECT_EQ(m.delta.value_dim, 16);
  EXPECT_EQ(m.delta.channels(), 160);
  EXPECT_EQ(m.delta.taps, 4);
  EXPECT_FALSE(m.delta.sigmoid_gate);
  EXPECT_TRUE(m.qk_norm && m.centred_norms && m.attention_gate);
  EXPECT_FALSE(m.tied);
  EXPECT_EQ(m.rope.theta, 1e7);
  EXPECT_EQ(m.rope.partial, 0.25);
  const std::vector<double> f = rope_frequencies(m.rope, m.head_dim);
  ASSERT_EQ(f.size(), 4u);                        // 8 of 32 components rotate
  EXPECT_NEAR(f[1], std::pow(1e7, -0.25), 1e-9);  // the exponent is over 8
}

// As published: what the family leaves out, and an export of the language model alone.
TEST(TargetConfig, Qwen35Defaults) {
  const TempFolder folder;
  json config = qwen3_5();
  json& text = config["text_config"];
  for (const char* key :
       {"layer_types", "full_attention_interval", "linear_num_key_heads", "linear_num_value_heads",
        "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim", "attn_output_gate"})
    text.erase(key);
  text["rope_parameters"].erase("partial_rotary_factor");
  text["output_gate_type"] = "sigmoid";
  text["num_hidden_layers"] = 9;
  const TargetModel m = read(folder, config);
  EXPECT_EQ(m.linear, (std::vector<bool>{true, true, true, false, true, true, true, false, true}));
  EXPECT_EQ(m.delta.key_heads, 16);
  EXPECT_EQ(m.delta.value_heads, 32);
  EXPECT_EQ(m.delta.key_dim, 128);
  EXPECT_EQ(m.delta.value_dim, 128);
  EXPECT_EQ(m.delta.taps, 4);
  EXPECT_TRUE(m.delta.sigmoid_gate);
  EXPECT_EQ(m.rope.partial, 0.25);
  text["output_gate_type"] = "swish";
  text["full_attention_interval"] = 2;
  text["vision_config"] = {{"depth", 1}};
  const TargetModel alone = read(folder, text);  // its model_type is qwen3_5_text
  EXPECT_EQ(alone.model_type, "qwen3_5");
  EXPECT_FALSE(alone.delta.sigmoid_gate);
  EXPECT_FALSE(alone.is_linear(1));
  EXPECT_TRUE(alone.is_linear(2));
}

TEST(TargetConfig, TinyQwen3) {
  const TargetModel m = read_target_config(kGolden + "tiny-qwen3");
  EXPECT_EQ(m.model_type, "qwen3");
  EXPECT_EQ(m.hidden, 64);
  EXPECT_EQ(m.intermediate, 128);
  EXPECT_EQ(m.layers, 4);
  EXPECT_EQ(m.heads, 4);
  EXPECT_EQ(m.kv_heads, 2);
  EXPECT_EQ(m.head_dim, 32);  // from the file: hidden / heads is 16
  EXPECT_EQ(m.vocab, 256);
  EXPECT_EQ(m.eps, 1e-6f);
  EXPECT_TRUE(m.qk_norm);
  EXPECT_TRUE(m.tied);
  EXPECT_EQ(m.max_position, 512);
  EXPECT_EQ(m.rope.type, "default");
  EXPECT_EQ(m.rope.theta, 1e6);
}

TEST(TargetConfig, TinyLlama) {
  const TargetModel m = read_target_config(kGolden + "tiny-llama");
  EXPECT_EQ(m.head_dim, 16);  // hidden / heads
  EXPECT_FALSE(m.qk_norm);
  EXPECT_EQ(m.eps, 1e-5f);
  EXPECT_EQ(m.rope.type, "llama3");
  EXPECT_EQ(m.rope.factor, 8);
  EXPECT_EQ(m.rope.low_freq_factor, 1);
  EXPECT_EQ(m.rope.high_freq_factor, 4);
  EXPECT_EQ(m.rope.original_max_position, 64);
}

TEST(TargetConfig, FilesThatAreNone) {
  const TempFolder folder;
  expect_refused([&] { read_target_config(folder.path()); }, kBadInput,
                 {folder / "config.json", "No such file"});
  expect_refused([&] { read_target_config(folder / "absent"); }, kBadInput,
                 {folder / "absent", "no such folder"});
  for (const char* text :
       {"", "{", "[]", "{\"model_type\": \"qwen3\", \"model_type\": \"llama\"}", "{\"a\": NaN}", "\xff"}) {
    write_file(folder / "config.json", text);
    expect_refused([&] { read_target_config(folder.path()); }, kBadInput, {folder / "config.json"});
  }
}

TEST(TargetConfig, WhatMayBeAbsentOrNull) {
  const TempFolder folder;
  json config = qwen3();
  for (const char* key : {"attention_bias", "hidden_act", "tie_word_embeddings", "num_key_value_heads"})
    config[key] = nullptr;
  config["an_unknown_key"] = {1, 2};
  const TargetModel m = read(folder, config);
  EXPECT_EQ(m.kv_heads, 4);
  EXPECT_FALSE(m.tied);
}

// B15: either spelling, or both with one value.
TEST(Rope, EitherSpelling) {
  const TempFolder folder;
  for (const char* patch :
       {R"({"rope_theta": 1e6})", R"({"rope_theta": null, "rope_parameters": {"rope_theta": 1000000}})",
        R"({"rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}})",
        R"({"rope_theta": null, "rope_scaling": {"rope_type": "default", "rope_theta": 1e6}})"}) {
    json config = qwen3();
    config.merge_patch(json::parse(patch));
    const TargetModel m = read(folder, config);
    EXPECT_EQ(m.rope.theta, 1e6) << patch;
    EXPECT_EQ(m.rope.type, "default");
    const std::vector<double> f = rope_frequencies(m.rope, 128);
    ASSERT_EQ(f.size(), 64u);
    EXPECT_EQ(f[0], 1);
    EXPECT_NEAR(f[1], 0.8058422, 5e-8);
  }
}

TEST(Rope, Llama3InTheNewSpelling) {
  const TempFolder folder;
  json config = json::parse(read_file(kGolden + "tiny-llama/config.json"));
  config["rope_parameters"] = config["rope_scaling"];
  EXPECT_EQ(read(folder, config).rope.factor, 8);
  config["rope_parameters"]["factor"] = 16;
  expect_refused([&] { read(folder, config); }, kBadInput, {"rope_scaling", "differs"});
  config.erase("rope_scaling");
  config.erase("rope_theta");
  EXPECT_EQ(read(folder, config).rope.factor, 16);
}

TEST(Rope, Llama3Frequencies) {
  const RopeConfig rope{.type = "llama3",
                        .theta = 5e5,
                        .factor = 8,
                        .low_freq_factor = 1,
                        .high_freq_factor = 4,
                        .original_max_position = 8192};
  const std::vector<double> f = rope_frequencies(rope, 128);
  ASSERT_EQ(f.size(), 64u);
  EXPECT_NEAR(f[28] / 0.00321144599, 1, 1e-8);
  EXPECT_NEAR(f[29] / 0.00216657076, 1, 1e-8);
  EXPECT_NEAR(f[32] / 0.000524846161, 1, 1e-8);
  EXPECT_NEAR(f[34] / 0.000178507813, 1, 1e-8);
  EXPECT_NEAR(f[35] / 9.55621235e-05, 1, 1e-8);
  EXPECT_NEAR(f[63] / 3.06892599e-07, 1, 1e-8);
}

// B1
TEST(DefaultTaps, ByTheRule) {
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(default_taps(36, 5), (Ids{1, 9, 17, 25, 33}));
  EXPECT_EQ(default_taps(28, 5), (Ids{1, 7, 13, 19, 25}));
  EXPECT_EQ(default_taps(64, 5), (Ids{1, 16, 31, 46, 61}));
  EXPECT_EQ(default_taps(62, 5), (Ids{1, 16, 30, 44, 59}));  // 15.5 and 44.5: halves to even
  EXPECT_EQ(default_taps(38, 5), (Ids{1, 10, 18, 26, 35}));
  EXPECT_EQ(default_taps(40, 5), (Ids{1, 10, 19, 28, 37}));
  EXPECT_EQ(default_taps(36, 3), (Ids{1, 17, 33}));
  EXPECT_EQ(default_taps(36, 2), (Ids{1, 33}));
  EXPECT_EQ(default_taps(36, 1), (Ids{18}));
  EXPECT_EQ(default_taps(1, 1), (Ids{0}));
}

// B3: five times 1
TEST(DefaultTaps, TooManyForTheTarget) {
  expect_refused([] { default_taps(4, 5); }, kUsage,
                 {"[1, 1, 1, 1, 1]", "layer 1", "0..3", "target_layer_ids"});
  expect_refused([] { default_taps(2, 2); }, kUsage, {"[1, -1]", "0..1"});
}

}  // namespace
}  // namespace slip::testing
