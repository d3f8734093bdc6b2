// The frozen target against values that another implementation computed, and what must hold for any weights.
#include "model/target.hpp"

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "io/files.hpp"
#include "support/near.hpp"
#include "support/test_device.hpp"

namespace slip::testing {
namespace {

using Ids = std::vector<int32_t>;
using Lengths = std::vector<int64_t>;

// A target and what its taps hold for given documents, in fp32.
class Rig {
 public:
  explicit Rig(const std::string& folder, int64_t layers = -1, int64_t max_tokens = 128)
      : model_(read_target_config(folder)),
        weights_(folder),
        target_{
            model_,
            load_target<float>(model_, weights_, {layers < 0 ? model_.layers : layers, true}, arena_, queue_),
            make_target_buffers<float>(model_, max_tokens, arena_, queue_)},
        row_("row", max_tokens, arena_) {}

  // (tokens, H) per tap, and the order in which they came
  std::vector<std::vector<double>> taps(const Ids& ids, const Lengths& lengths,
                                        const std::vector<int64_t>& taps) {
    std::vector<std::vector<double>> out(taps.size());
    order.clear();
    target_forward<float>(target_, row_.set(ids, lengths, queue_), taps, queue_,
                          [&](int i, View2<const float> x) {
                            order.push_back(i);
                            EXPECT_EQ(x.rows, static_cast<int64_t>(ids.size()));
                            EXPECT_EQ(x.cols, model_.hidden);
                            out[static_cast<size_t>(i)] = values_of(x, queue_);
                          });
    return out;
  }
  // (tokens, H) per tap as they are captured, zeros for the tap that is left out
  std::vector<std::vector<double>> captures(const Ids& ids, const Lengths& lengths,
                                            const std::vector<int64_t>& taps, int left_out) {
    const int64_t count = static_cast<int64_t>(ids.size()), h = model_.hidden;
    Bf16* const slot = arena_.take<Bf16>("slot", static_cast<int64_t>(taps.size()) * count * h);
    target_forward<float>(
        target_, row_.set(ids, lengths, queue_), taps, queue_, [](int, View2<const float>) {},
        [&](int i) { return i == left_out ? nullptr : slot + i * count * h; });
    std::vector<std::vector<double>> out;
    for (size_t i = 0; i < taps.size(); ++i)
      out.push_back(values_of(View2<Bf16>(slot + static_cast<int64_t>(i) * count * h, count, h), queue_));
    return out;
  }
  const TargetWeights<float>& weights() const { return target_.weights; }
  float embedding(int64_t row, int64_t column) const { return element(weights().embed, row, column); }
  float head(int64_t row, int64_t column) const { return element(weights().head, row, column); }
  const TargetModel& model() const { return model_; }
  std::vector<int> order;

 private:
  float element(const View2<const float>& m, int64_t row, int64_t column) const {
    return downloaded(m.row(row) + column, 1, queue_)[0];
  }

  TestQueue queue_ = make_queue(kTestDevice);
  Arena arena_{kTestDevice};
  TargetModel model_;
  WeightFolder weights_;
  Target<float> target_;
  PackedRow row_;
};

std::string golden(const std::string& name) { return std::string(SLIP_SOURCE_DIR) + "/tests/golden/" + name; }

class GoldenTarget : public ::testing::TestWithParam<const char*> {
 protected:
  GoldenTarget()
      : file_(nlohmann::json::parse(std::ifstream(golden("target_golden.json")))),
        values(file_["targets"][GetParam()]) {
    file_["input_ids"].get_to(ids);
    const auto cu = file_["cu_seqlens"].get<std::vector<int64_t>>();
    for (size_t d = 1; d < cu.size(); ++d) lengths.push_back(cu[d] - cu[d - 1]);
    file_["tokens"].get_to(tokens);
  }
  nlohmann::json file_;

 public:
  nlohmann::json values;
  Ids ids;
  Lengths lengths;
  std::vector<int64_t> tokens;
};

TEST_P(GoldenTarget, ResidualStreamAfterEveryLayer) {
  Rig rig(golden(GetParam()));
  const auto taps = rig.taps(ids, lengths, {0, 1, 2, 3});
  ASSERT_EQ(values["layers"].size(), taps.size());
  for (size_t l = 0; l < taps.size(); ++l) {
    SCOPED_TRACE("layer " + std::to_string(l));
    std::vector<double> got, want;
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (int64_t c = 0; c < 3; ++c)
        got.push_back(taps[l][static_cast<size_t>(tokens[i] * rig.model().hidden + c)]);
      for (const double x : values["layers"][l]["first"][i]) want.push_back(x);
    }
    EXPECT_TRUE(near(got, want, 2e-5, 0));
    double sum = 0;
    for (const double x : taps[l]) sum += x * x;
    EXPECT_NEAR(std::sqrt(sum / static_cast<double>(taps[l].size())),
                values["layers"][l]["rms_all"].get<double>(), 1e-6);
  }
  for (int64_t c = 0; c < 3; ++c) {
    EXPECT_EQ(rig.embedding(ids[0], c), values["embed"]["first"][static_cast<size_t>(c)].get<float>());
  }
}

TEST_P(GoldenTarget, PackedEqualsSeparate) {
  Rig rig(golden(GetParam()));
  const auto packed = rig.taps(ids, lengths, {3});
  const Ids first(ids.begin(), ids.begin() + lengths[0]), second(ids.begin() + lengths[0], ids.end());
  std::vector<double> apart = rig.taps(first, {lengths[0]}, {3})[0];
  const auto rest = rig.taps(second, {lengths[1]}, {3})[0];
  apart.insert(apart.end(), rest.begin(), rest.end());
  EXPECT_TRUE(near(packed[0], apart, 1e-6, 1e-6));
  // as one document it is another text
  EXPECT_FALSE(near(rig.taps(ids, {79}, {3})[0], apart, 1e-3, 0));
}

TEST_P(GoldenTarget, WhatOneDocumentSaysDoesNotReachTheOther) {
  Rig rig(golden(GetParam()));
  const int64_t from = lengths[0] * rig.model().hidden;
  const auto before = rig.taps(ids, lengths, {3})[0];
  Ids other = ids;
  for (int64_t t = 0; t < lengths[0]; ++t)
    other[static_cast<size_t>(t)] = (ids[static_cast<size_t>(t)] + 1) % 256;
  const auto after = rig.taps(other, lengths, {3})[0];
  const auto tail = [&](const std::vector<double>& v) {
    return std::vector<double>(v.begin() + from, v.end());
  };
  EXPECT_EQ(tail(before), tail(after));
  EXPECT_NE(before, after);
}

TEST_P(GoldenTarget, LaterTokensDoNotReachEarlierOnes) {
  Rig rig(golden(GetParam()));
  const auto before = rig.taps(ids, {79}, {3})[0];
  Ids other = ids;
  other[50] = (ids[50] + 1) % 256;
  const auto after = rig.taps(other, {79}, {3})[0];
  const int64_t at = 50 * rig.model().hidden;
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + at, after.begin()));
  EXPECT_FALSE(std::equal(before.begin() + at, before.begin() + at + rig.model().hidden, after.begin() + at));
}

// Taps do not disturb the stream; it stops after the last one, and layers after that need not be loaded.
TEST_P(GoldenTarget, AnyTapsInAnyOrder) {
  Rig rig(golden(GetParam())), two(golden(GetParam()), 2);
  const auto all = rig.taps(ids, lengths, {0, 1, 2, 3});
  EXPECT_EQ(rig.order, (std::vector<int>{0, 1, 2, 3}));
  const auto some = rig.taps(ids, lengths, {3, 0});
  EXPECT_EQ(rig.order, (std::vector<int>{1, 0}));  // as they come
  EXPECT_TRUE(near(some[0], all[3], 1e-6, 1e-6));
  EXPECT_EQ(some[1], all[0]);
  EXPECT_EQ(two.taps(ids, lengths, {1, 0})[0], all[1]);
  EXPECT_NE(all[0], all[3]);
  EXPECT_THROW(two.taps(ids, lengths, {2}), Error);
}

// What leaves for the drafters: the stream as bf16, of every tap that asks for it, two of one layer included.
TEST_P(GoldenTarget, CapturesTheStreamAsBf16) {
  Rig rig(golden(GetParam()));
  const std::vector<int64_t> layers = {3, 0, 3, 1};
  const auto streams = rig.taps(ids, lengths, layers);
  const auto captured = rig.captures(ids, lengths, layers, 1);
  for (size_t i = 0; i < layers.size(); ++i) {
    SCOPED_TRACE("tap " + std::to_string(i));
    std::vector<double> want = streams[i];
    for (double& x : want) x = i == 1 ? 0 : element_value(make_element<Bf16>(x));  // tap 1 did not ask
    EXPECT_EQ(captured[i], want);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, GoldenTarget, ::testing::Values("tiny-llama", "tiny-qwen3", "tiny-qwen3_5"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Documents with every border of a chunk of the delta rule in one row: each as if it were alone, in the
// linear layers and in the one with attention.
TEST(HybridTarget, PackedEqualsAloneAtEveryBorder) {
  const Lengths lengths = {1, 2, 3, 4, 63, 64, 65, 127, 128, 129, 500};
  Rig rig(golden("tiny-qwen3_5"), -1, 1100);
  Ids ids;
  for (int64_t t = 0; t < std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); ++t)
    ids.push_back(static_cast<int32_t>((7 * t * t + 3 * t + 11) % 256));
  const auto packed = rig.taps(ids, lengths, {0, 2, 3});
  int64_t first = 0;
  for (const int64_t n : lengths) {
    SCOPED_TRACE("document of " + std::to_string(n));
    const auto alone = rig.taps(Ids(ids.begin() + first, ids.begin() + first + n), {n}, {0, 2, 3});
    for (size_t i = 0; i < alone.size(); ++i) {
      const auto from = packed[i].begin() + first * rig.model().hidden;
      // Products of a GPU sum in another order for another number of rows.
      const double tolerance = kTestDevice == Device::cpu ? 1e-6 : 1e-5;
      EXPECT_TRUE(
          near(alone[i], std::vector<double>(from, from + n * rig.model().hidden), tolerance, tolerance));
    }
    first += n;
  }
}

// tiny-qwen3_5 with its tensors changed one way or another.
class HybridFiles : public ::testing::Test {
 protected:
  HybridFiles() : source_(golden("tiny-qwen3_5")) {
    write_file(folder_ / "config.json", read_file(golden("tiny-qwen3_5") + "/config.json"));
    for (const std::string& name : source_.names()) {
      const TensorInfo& t = *source_.find(name);
      put(name, t.shape, t.dtype, [&](std::vector<float>& v) { source_.read_float(t, v.data()); });
    }
  }
  template <class F>
  void put(const std::string& name, const std::vector<int64_t>& shape, Dtype dtype, F&& fill) {
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    std::vector<float>& v =
        *values_.emplace_back(std::make_unique<std::vector<float>>(static_cast<size_t>(count)));
    fill(v);
    tensors_.push_back({name, dtype, shape, nullptr});
  }
  void put(const std::string& name, const std::vector<int64_t>& shape) {
    put(name, shape, Dtype::bf16, [](std::vector<float>&) {});
  }
  // (tokens, H) after the last layer, of the files as they are now
  std::vector<double> run() {
    std::vector<std::vector<Bf16>> narrow;
    std::vector<TensorToWrite> out = tensors_;
    for (size_t i = 0; i < out.size(); ++i) {
      const std::vector<float>& v = *values_[i];
      out[i].data = v.data();
      if (out[i].dtype != Dtype::bf16) continue;
      narrow.emplace_back();
      for (const float x : v) narrow.back().push_back(to_bf16(x));
      out[i].data = narrow.back().data();
    }
    write_safetensors(folder_ / "model.safetensors", out);
    Rig rig(folder_.path());
    return rig.taps({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {6, 4}, {3})[0];
  }

  TempFolder folder_;
  WeightFolder source_;
  std::vector<std::unique_ptr<std::vector<float>>> values_;
  std::vector<TensorToWrite> tensors_;
};

// 3.5 has A_log and the gated norm in F32, 3.6 in BF16.
TEST_F(HybridFiles, TheTypeOfAFileDoesNotMatter) {
  const std::vector<double> before = run();
  int changed = 0;
  for (TensorToWrite& t : tensors_) {
    if (!t.name.ends_with(".A_log") && !t.name.ends_with("linear_attn.norm.weight")) continue;
    t.dtype = t.dtype == Dtype::f32 ? Dtype::bf16 : Dtype::f32;
    ++changed;
  }
  EXPECT_EQ(changed, 6);
  EXPECT_EQ(run(), before);
}

TEST_F(HybridFiles, VisionAndPredictionLayersArePassedOver) {
  const std::vector<double> before = run();
  put("model.visual.blocks.0.attn.qkv.weight", {4, 4});
  put("mtp.layers.0.self_attn.q_proj.weight", {4, 4});
  EXPECT_EQ(run(), before);
}

TEST_F(HybridFiles, AnExportOfTheLanguageModelAlone) {
  const std::vector<double> before = run();
  for (TensorToWrite& t : tensors_) {
    if (const size_t at = t.name.find("language_model."); at != std::string::npos) t.name.erase(at, 15);
  }
  EXPECT_EQ(run(), before);
}

TEST_F(HybridFiles, WhatNoLayerHasIsNamed) {
  put("model.language_model.layers.1.mlp.gate_proj.weight_scale_inv", {1, 1});
  expect_refused([&] { run(); }, kBadInput, {"layers.1.mlp.gate_proj.weight_scale_inv", "supported: dense"});
}

TEST_F(HybridFiles, AMissingTensorIsNamed) {
  const auto at = std::find_if(tensors_.begin(), tensors_.end(), [](const TensorToWrite& t) {
    return t.name.ends_with("2.linear_attn.dt_bias");
  });
  ASSERT_NE(at, tensors_.end());
  values_.erase(values_.begin() + (at - tensors_.begin()));
  tensors_.erase(at);
  expect_refused([&] { run(); }, kBadInput, {"model.language_model.layers.2.linear_attn.dt_bias"});
}

// A Llama whose attention gives nothing and whose layer l adds 2^l to every element: gate 32, where SiLU is
// the identity, up 1, down 2^l / (8 * 32).
class DoublingTarget : public ::testing::Test {
 protected:
  static constexpr int64_t kWidth = 8, kRows = 16;

  void put(const std::string& name, const std::vector<int64_t>& shape, float value) {
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    data_.push_back(std::make_unique<std::vector<float>>(static_cast<size_t>(count), value));
    tensors_.push_back({name, Dtype::f32, shape, data_.back()->data()});
  }
  void write(bool tied, const std::string& embedding = "model.embed_tokens.weight") {
    put(embedding, {kRows, kWidth}, 1);
    for (int64_t row = 0; row < kRows; ++row)
      (*data_.back())[static_cast<size_t>(row * kWidth)] = 1 + static_cast<float>(row) / 64;
    if (!tied) put("lm_head.weight", {kRows, kWidth}, 3);
    for (int l = 0; l < 6; ++l) {
      const std::string p = "model.layers." + std::to_string(l) + ".";
      put(p + "input_layernorm.weight", {kWidth}, 1);
      put(p + "post_attention_layernorm.weight", {kWidth}, 1);
      for (const char* n : {"q", "k", "v", "o"})
        put(p + "self_attn." + n + "_proj.weight", {kWidth, kWidth}, *n == 'o' ? 0.0f : 0.5f);
      put(p + "mlp.gate_proj.weight", {kWidth, kWidth}, 32.0f / kWidth);
      put(p + "mlp.up_proj.weight", {kWidth, kWidth}, 1.0f / kWidth);
      put(p + "mlp.down_proj.weight", {kWidth, kWidth}, static_cast<float>(1 << l) / (32.0f * kWidth));
    }
    write_safetensors(folder_ / "model.safetensors", tensors_);
    write_file(folder_ / "config.json",
               R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 6,
      "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 16, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
      "max_position_embeddings": 64, "tie_word_embeddings": )" +
                   std::string(tied ? "true" : "false") + "}");
  }

  TempFolder folder_;
  std::vector<std::unique_ptr<std::vector<float>>> data_;
  std::vector<TensorToWrite> tensors_;
};

// B4: with the taps [1, 3] every element has grown by 3 and by 15. One layer off would be 1 and 7, or 7
// and 31.
TEST_F(DoublingTarget, B4TheStateAfterTheLayer) {
  write(true);
  Rig rig(folder_.path());
  const auto taps = rig.taps({0, 0, 0}, {2, 1}, {1, 3});
  EXPECT_TRUE(near(taps[0], std::vector<double>(24, 1 + 3), 1e-4, 0));
  EXPECT_TRUE(near(taps[1], std::vector<double>(24, 1 + 15), 1e-4, 0));
}

TEST_F(DoublingTarget, B9ATiedHeadIsTheEmbedding) {
  write(true);
  Rig rig(folder_.path());
  EXPECT_EQ(rig.weights().head.data, rig.weights().embed.data);
  EXPECT_EQ(rig.weights().head.rows, kRows);
}

TEST_F(DoublingTarget, AnUntiedHeadIsItsOwn) {
  write(false);
  Rig rig(folder_.path());
  EXPECT_EQ(rig.head(15, 7), 3);
  EXPECT_EQ(rig.embedding(15, 7), 1);
  EXPECT_EQ(rig.embedding(8, 0), 1.125f);
}

TEST_F(DoublingTarget, AHeadThatIsMissingIsNamed) {
  write(true);
  const std::string config = read_file(folder_ / "config.json");
  write_file(folder_ / "config.json", config.substr(0, config.rfind("true")) + "false}");
  expect_refused([&] { Rig rig(folder_.path()); }, kBadInput, {"lm_head.weight"});
}

TEST_F(DoublingTarget, B14TheEmbeddingOfAWrappedModel) {
  write(true, "model.language_model.embed_tokens.weight");
  EXPECT_EQ(Rig(folder_.path()).embedding(8, 0), 1.125f);
}

TEST_F(DoublingTarget, B14NoEmbeddingShowsWhatThereIs) {
  write(true, "decoder.wte.weight");
  expect_refused([&] { Rig rig(folder_.path()); }, kBadInput,
                 {"model.embed_tokens.weight", "decoder.wte.weight"});
}

TEST_F(DoublingTarget, ATensorOfAnotherShapeIsNamed) {
  write(true);
  const std::string config = read_file(folder_ / "config.json");
  std::string wide = config;
  wide.replace(wide.find("\"intermediate_size\": 8"), 22, "\"intermediate_size\": 9");
  write_file(folder_ / "config.json", wide);
  expect_refused([&] { Rig rig(folder_.path()); }, kBadInput,
                 {"model.layers.0.mlp.gate_proj.weight", "[8, 8]", "[9, 8]"});
}

TEST(PackedRow, PositionsRestartWithEveryDocument) {
  Arena arena(kTestDevice);
  const TestQueue queue = make_queue(kTestDevice);
  PackedRow row("row", 8, arena);
  const Packed p = row.set(Ids{5, 6, 7, 8, 9, 10}, Lengths{3, 1, 2}, queue);
  EXPECT_EQ(p.tokens, 6);
  EXPECT_EQ(p.documents, 3);
  EXPECT_EQ(downloaded(p.position, 6, queue), (std::vector<int>{0, 1, 2, 0, 0, 1}));
  EXPECT_EQ(downloaded(p.cu, 4, queue), (std::vector<int>{0, 3, 4, 6}));
  EXPECT_EQ(downloaded(p.ids, 6, queue), (std::vector<int>{5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(downloaded(row.set(Ids{1}, Lengths{1}, queue).position, 1, queue)[0],
            0);  // the next row replaces it
  EXPECT_THROW(row.set(Ids(9, 1), Lengths{9}, queue), Error);
  EXPECT_THROW(row.set(Ids{1, 2}, Lengths{1}, queue), Error);
}

}  // namespace
}  // namespace slip::testing
