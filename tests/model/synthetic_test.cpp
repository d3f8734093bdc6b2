// Weights from an architecture alone are those that training starts from.
#include "model/synthetic.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace slip {
namespace {

DrafterModel drafter() {
  DrafterModel m;
  m.hidden = 16, m.intermediate = 24, m.layers = 2, m.heads = 2, m.kv_heads = 1, m.head_dim = 8, m.vocab = 32;
  m.block = 4, m.mask_token = 31, m.taps = {0, 2}, m.sliding = m.causal = {false, false};
  m.rope.theta = 1e4;
  return m;
}

TEST(Synthetic, DrafterStartsAsTrainingDoes) {
  const Queue cpu;
  Arena arena(Device::cpu);
  Drafter<float> d = make_drafter<float>(drafter(), {8, 2, 16}, arena, cpu);
  synthetic_weights(d, 5, cpu);
  const std::vector<float> want = initial_parameters(d.model, d.layout, 5);
  EXPECT_EQ(std::vector<float>(d.weights, d.weights + d.layout.count), want);
}

TEST(Synthetic, TargetForwardsAndIsFinite) {
  const Queue cpu;
  Arena arena(Device::cpu);
  TargetModel m;
  m.model_type = "qwen3", m.qk_norm = true, m.hidden = 16, m.intermediate = 24, m.layers = 3, m.heads = 2;
  m.kv_heads = 1, m.head_dim = 8, m.vocab = 32, m.eps = 1e-6f, m.rope.theta = 1e4;
  const Target<float> target{m, synthetic_target<float>(m, {2, true}, 1, arena, cpu),
                             make_target_buffers<float>(m, 6, arena, cpu)};
  ASSERT_EQ(target.weights.layers.size(), 2u);
  EXPECT_EQ(target.weights.head.rows, 32);
  EXPECT_NE(target.weights.head.data, target.weights.embed.data);
  EXPECT_NE(target.weights.layers[0].in.at(0, 0), target.weights.layers[1].in.at(0, 0));
  PackedRow row("row", 6, arena);
  const int32_t ids[] = {1, 2, 3, 4, 5, 6};
  const int64_t lengths[] = {4, 2};
  int taps = 0;
  target_forward<float>(target, row.set(ids, lengths, cpu), {0, 1}, cpu, [&](int, View2<const float> stream) {
    ++taps;
    for (int64_t t = 0; t < 6; ++t) {
      for (int64_t c = 0; c < 16; ++c) EXPECT_TRUE(std::isfinite(stream.at(t, c)));
    }
  });
  EXPECT_EQ(taps, 2);
}

TEST(Synthetic, HybridTargetForwardsAndIsFinite) {
  const Queue cpu;
  Arena arena(Device::cpu);
  TargetModel m;
  m.model_type = "qwen3_5", m.qk_norm = m.centred_norms = m.attention_gate = true, m.linear = {true, false};
  m.delta = {.key_heads = 1, .value_heads = 3, .key_dim = 8, .value_dim = 8, .taps = 4};
  m.hidden = 16, m.intermediate = 24, m.layers = 2, m.heads = 2, m.kv_heads = 1, m.head_dim = 8, m.vocab = 32;
  m.eps = 1e-6f, m.rope.theta = 1e4, m.rope.partial = 0.25;
  const Target<float> target{m, synthetic_target<float>(m, {2, false}, 1, arena, cpu),
                             make_target_buffers<float>(m, 6, arena, cpu)};
  EXPECT_EQ(target.weights.layers[0].in.rows, 128);  // 40 channels, 24 of z, 3 of b and of a, in 64s
  EXPECT_EQ(target.weights.layers[1].in.rows, 16 + 8 + 8 + 16);
  EXPECT_EQ(target.weights.layers[1].q_norm[0], 0);  // zero-centred
  EXPECT_EQ(target.weights.layers[0].gated_norm[0], 1);
  EXPECT_NE(target.weights.layers[0].a_log[0], target.weights.layers[0].a_log[1]);
  PackedRow row("row", 6, arena);
  const int32_t ids[] = {1, 2, 3, 4, 5, 6};
  const int64_t lengths[] = {4, 2};
  double first = 0, second = 0;
  target_forward<float>(target, row.set(ids, lengths, cpu), {0, 1}, cpu,
                        [&](int tap, View2<const float> stream) {
                          for (int64_t i = 0; i < 6 * 16; ++i)
                            (tap == 0 ? first : second) += std::abs(stream.at(i / 16, i % 16));
                        });
  EXPECT_TRUE(std::isfinite(first) && std::isfinite(second));
  EXPECT_NE(first, second);
}

TEST(Synthetic, TiedHeadIsTheEmbedding) {
  const Queue cpu;
  Arena arena(Device::cpu);
  TargetModel m;
  m.model_type = "llama", m.tied = true, m.hidden = 8, m.intermediate = 8, m.layers = 1, m.heads = 1,
  m.kv_heads = 1;
  m.head_dim = 8, m.vocab = 16;
  const TargetWeights<float> w = synthetic_target<float>(m, {1, true}, 1, arena, cpu);
  EXPECT_EQ(w.head.data, w.embed.data);
  EXPECT_EQ(w.layers[0].q_norm, nullptr);
}

}  // namespace
}  // namespace slip
