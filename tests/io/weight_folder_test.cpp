#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "io/files.hpp"
#include "io/safetensors.hpp"
#include "io/safetensors_bytes.hpp"

namespace slip::testing {
namespace {

const std::string kGolden = SLIP_SOURCE_DIR "/tests/golden/";

// A shard with float tensors [2] whose values are 1, 2, ... in the order of the names.
void write_shard(const std::string& path, const std::vector<std::string>& names) {
  std::vector<float> data(2 * names.size());
  std::iota(data.begin(), data.end(), 1.0f);
  std::vector<TensorToWrite> tensors;
  for (size_t i = 0; i < names.size(); ++i) tensors.push_back({names[i], Dtype::f32, {2}, &data[2 * i]});
  write_safetensors(path, tensors);
}

std::string index_json(const std::map<std::string, std::string>& map, int64_t total_size) {
  const nlohmann::json index = {{"metadata", {{"total_size", total_size}}}, {"weight_map", map}};
  return index.dump();
}

class Sharded : public ::testing::Test {
 protected:
  void SetUp() override {
    write_shard(folder / "m-1.safetensors", {"a", "b"});
    write_shard(folder / "m-2.safetensors", {"c"});
    write_shard(folder / "m-3.safetensors", {"d", "e"});
    index(whole);
  }
  void index(const std::map<std::string, std::string>& map, int64_t total_size = 40) {
    write_file(folder / "model.safetensors.index.json", index_json(map, total_size));
  }
  void refused(const std::vector<std::string>& parts) {
    expect_refused([&] { WeightFolder w(folder.path()); }, kBadInput, parts);
  }

  const std::map<std::string, std::string> whole = {{"a", "m-1.safetensors"},
                                                    {"b", "m-1.safetensors"},
                                                    {"c", "m-2.safetensors"},
                                                    {"d", "m-3.safetensors"},
                                                    {"e", "m-3.safetensors"}};
  TempFolder folder;
};

TEST_F(Sharded, ReadsEveryTensorFromItsShard) {
  const WeightFolder w(folder.path());
  EXPECT_EQ(w.names(), (std::vector<std::string>{"a", "b", "c", "d", "e"}));
  float v[2];
  w.read_float(w.need("e", {2}), v);
  EXPECT_EQ(v[0], 3);
  EXPECT_EQ(v[1], 4);
  Bf16 rounded[2];
  w.read_bf16(w.need("c", {2}), rounded);
  EXPECT_EQ(to_float(rounded[1]), 2);
}

// B11
TEST_F(Sharded, AllMissingShardsAreListedAtOnce) {
  std::filesystem::remove(folder / "m-2.safetensors");
  refused({"model.safetensors.index.json", "1 of 3", "m-2.safetensors"});
  std::filesystem::remove(folder / "m-3.safetensors");
  refused({"2 of 3", "m-2.safetensors, m-3.safetensors"});
}

TEST_F(Sharded, ATensorInAnotherShardNamesTensorAndBothFiles) {
  write_shard(folder / "m-1.safetensors", {"a"});
  write_shard(folder / "m-3.safetensors", {"b", "d", "e"});
  refused({"b is not in m-1.safetensors but in m-3.safetensors"});
}

TEST_F(Sharded, ATensorInNoShard) {
  write_shard(folder / "m-3.safetensors", {"d"});
  refused({"e is not in m-3.safetensors nor in another shard"});
}

TEST_F(Sharded, ATensorInTwoShards) {
  write_shard(folder / "m-2.safetensors", {"c", "a"});
  refused({"a lies in m-1.safetensors and in m-2.safetensors"});
}

TEST_F(Sharded, NamesOutsideTheFolder) {
  for (const char* name : {"../x", "/etc/passwd", "sub/x.safetensors", "..", "."}) {
    auto map = whole;
    map["c"] = name;
    index(map);
    refused({"weight_map", "c names", name});
  }
}

TEST_F(Sharded, IndexThatIsNone) {
  const std::string path = folder / "model.safetensors.index.json";
  write_file(path, "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"a\":\"m-2.safetensors\"}}");
  refused({path, "\"a\"", "twice"});
  write_file(path, "{\"weight_map\":{\"a\":1}}");
  refused({path, "a names 1"});
  write_file(path, "{\"weight_map\":[]}");
  refused({path, "weight_map"});
  write_file(path, "{\"weight_map\":{}}");
  refused({path, "empty"});
  write_file(path, "{\"weight_map\":");
  refused({path, "not JSON"});
  write_file(path, "");
  refused({path, "not JSON"});
}

TEST_F(Sharded, AWrongTotalSizeIsAWarning) {
  index(whole, 41);
  EXPECT_EQ(WeightFolder(folder.path()).names().size(), 5u);
}

TEST_F(Sharded, ACutShardIsNamed) {
  std::filesystem::resize_file(folder / "m-2.safetensors",
                               std::filesystem::file_size(folder / "m-2.safetensors") - 1);
  refused({folder / "m-2.safetensors", "difference 1"});
}

TEST_F(Sharded, TheSingleFileCountsWhenItHoldsEverything) {
  write_shard(folder / "model.safetensors", {"e", "d", "c", "b", "a"});
  float v[2];
  const WeightFolder single(folder.path());
  single.read_float(single.need("e", {2}), v);
  EXPECT_EQ(v[0], 1);
  write_shard(folder / "model.safetensors", {"e"});
  const WeightFolder shards(folder.path());
  shards.read_float(shards.need("e", {2}), v);
  EXPECT_EQ(v[0], 3);
}

TEST_F(Sharded, OneShardWithAnIndex) {
  const TempFolder other;
  write_shard(other / "model.safetensors-00001-of-00001.safetensors", {"a"});
  write_file(other / "model.safetensors.index.json",
             index_json({{"a", "model.safetensors-00001-of-00001.safetensors"}}, 8));
  EXPECT_NE(WeightFolder(other.path()).find("a"), nullptr);
}

TEST_F(Sharded, NeedNamesWhatIsWrong) {
  const WeightFolder w(folder.path());
  expect_refused([&] { w.need("c", {3}); }, kBadInput, {folder / "m-2.safetensors", "c", "[2]", "[3]"});
  expect_refused([&] { w.need("x", {2}); }, kBadInput, {folder.path(), "x", "a, b, c, d, e"});
}

// B14 (c)
TEST(WeightFolder, AtMostTwentyNamesAreShown) {
  const TempFolder folder;
  std::vector<std::string> names;
  for (int i = 0; i < 25; ++i) names.emplace_back("t").append(std::to_string(100 + i));
  write_shard(folder / "model.safetensors", names);
  const WeightFolder w(folder.path());
  expect_refused([&] { w.need("model.embed_tokens.weight", {2}); }, kBadInput,
                 {"model.embed_tokens.weight", "t100", "t119", "and 5 more"});
  EXPECT_EQ(complaint_of([&] { w.need("x", {2}); }).text.find("t120"), std::string::npos);
}

TEST(WeightFolder, NumbersOfAnotherKind) {
  const TempFolder folder;
  const int32_t ints[2] = {1, 2};
  write_safetensors(folder / "model.safetensors", {{"a", Dtype::i32, {2}, ints}});
  const WeightFolder w(folder.path());
  expect_refused([&] { w.need("a", {2}); }, kBadInput, {"tensor a", "I32", "F32, BF16, F16, F64"});
}

// BF16 where F32 is expected and the other way round: each tensor's own dtype rules.
TEST(WeightFolder, EveryFloatDtypeReadsAsEither) {
  const TempFolder folder;
  const float wide[2] = {1.5f, -2.0f};
  const Bf16 narrow[2] = {to_bf16(1.5f), to_bf16(-2.0f)};
  write_safetensors(folder / "model.safetensors",
                    {{"wide", Dtype::f32, {2}, wide}, {"narrow", Dtype::bf16, {2}, narrow}});
  const WeightFolder w(folder.path());
  for (const char* name : {"wide", "narrow"}) {
    float f[2];
    Bf16 b[2];
    w.read_float(w.need(name, {2}), f);
    w.read_bf16(w.need(name, {2}), b);
    EXPECT_EQ(f[0], 1.5f);
    EXPECT_EQ(f[1], -2.0f);
    EXPECT_EQ(b[0], narrow[0]);
    EXPECT_EQ(b[1], narrow[1]);
  }
}

TEST(WeightFolder, NoFolderNoFile) {
  const TempFolder folder;
  expect_refused([&] { WeightFolder w(folder / "absent"); }, kBadInput,
                 {folder / "absent", "no such folder"});
  expect_refused([&] { WeightFolder w(folder.path()); }, kBadInput,
                 {folder.path(), "model.safetensors", "index.json"});
}

TEST(WeightFolder, GoldenTargets) {
  EXPECT_EQ(WeightFolder(kGolden + "tiny-qwen3").names().size(), 11u * 4 + 2);
  EXPECT_EQ(WeightFolder(kGolden + "tiny-llama").names().size(), 9u * 4 + 2);
}

}  // namespace
}  // namespace slip::testing
