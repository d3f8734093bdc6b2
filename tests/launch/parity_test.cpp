// The parity check on what was really decoded: silent where training and decoding agree, and loud for each of
// the faults that have let drafters train well and serve badly.
#include <gmock/gmock.h>

#include "decode/decode_rig.hpp"
#include "launch/prompt_evaluation.hpp"
#include "train/replay.hpp"

namespace slip::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRow = 288;
constexpr float kTolerance = 0.01f;  // that of a run in fp32

// Decodes with one drafter; replays as training would, with what a test breaks.
struct ParityRig {
  explicit ParityRig(const DrafterKind& kind = {}) : rig(kind), model(rig.model) {
    const Prompts all = read_prompts(root("data/tiny/prompts.h5"), 272, 1024, 0);
    for (size_t i = 0; i < all.list.size(); i += 8) {  // of half the families, and one verse
      prompts.list.push_back(all.list[i]);
      responses.push_back(rig.decode(all.list[i].ids, 40));
    }
  }

  struct Broken {  // what the training forward takes instead of what decoding took
    DrafterModel model;
    std::vector<float> weights;
    std::function<void(RowBlocks&)> on_blocks;
    int shift;  // of the features, in tokens
  };
  Parity replay(int64_t row_tokens = kRow) { return replay(row_tokens, {model, rig.weights, {}, 0}); }
  Parity replay(int64_t row_tokens, const Broken& b) {
    Arena arena(Device::cpu);
    const DrafterModel& model = b.model;
    Drafter<float> drafter = make_drafter<float>(model, {kRow, 24, kRow + 8}, arena, rig.queue);
    set_weights(drafter, b.weights, rig.queue);
    PassBuffers<float> pass = make_pass_buffers<float>(model, drafter.limits, arena);
    const ReplayBuffers<float> buffers = make_replay_buffers<float>(model, arena);
    const TargetModel& tm = rig.target->target.model;
    Target<float> target{
        tm, rig.target->target.weights, make_target_buffers<float>(tm, kRow, arena, rig.queue), {}};
    PackedRow packed_row("row", kRow, arena);
    Parity parity;
    rows = replay_rows(prompts, responses, row_tokens);
    for (const RowTokens& row : rows) {
      std::vector<DecodedCycle> cycles;
      RowBlocks blocks = replay_blocks(row, model, responses, cycles);
      if (b.on_blocks) b.on_blocks(blocks);
      const Packed in = packed_row.set(row.ids, row.lengths, rig.queue);
      std::vector<Bf16> features(model.taps.size() * static_cast<size_t>(in.tokens * model.hidden));
      target_forward<float>(
          target, in, model.taps, rig.queue, [](int, View2<const float>) {},
          [&](int i) { return features.data() + i * in.tokens * model.hidden; });
      std::rotate(features.begin(), features.begin() + b.shift * model.hidden, features.end());
      const auto blocks_said =
          replay_row<float>(drafter, pass, buffers, features.data(), in.tokens, in.position, blocks,
                            target.weights.embed, target.weights.head, rig.queue);
      compare_cycles(parity, prompts, responses, cycles, *blocks_said, kTolerance);
    }
    return parity;
  }

  DecodeRig rig;
  DrafterModel model;
  Prompts prompts;
  std::vector<Response> responses;
  std::vector<RowTokens> rows;
};

double cycles_of(const ParityRig& p) {
  size_t n = 0;
  for (const Response& r : p.responses) n += r.cycles.size();
  return static_cast<double>(n);
}

TEST(Parity, TrainingAgreesWithDecodingInEveryCycle) {
  for (const DrafterKind& kind : {DrafterKind{true, false}, {false, false}, {true, true}}) {
    ParityRig p(kind);
    const Parity parity = p.replay();
    EXPECT_EQ(parity.cycles, cycles_of(p));
    EXPECT_EQ(parity.equal + parity.near_ties, parity.cycles);
    EXPECT_LE(parity.near_ties, 1);
    EXPECT_FALSE(parity_fails(parity)) << parity.first;
    EXPECT_LT(p.rows.size(), p.responses.size()) << "several documents in a row";
  }
}

TEST(Parity, WhatDoesNotFitARowIsLeftOut) {
  ParityRig p;
  size_t shortest = kRow;
  for (const Prompt& q : p.prompts.list) shortest = std::min(shortest, q.ids.size());
  const Parity parity = p.replay(static_cast<int64_t>(shortest) + 5);
  EXPECT_GT(parity.cycles, 0);
  EXPECT_LT(parity.cycles, cycles_of(p));
  EXPECT_EQ(parity.different, 0) << parity.first;
  for (const RowTokens& row : p.rows) EXPECT_LE(row.ids.size(), shortest + 5);
  EXPECT_EQ(p.replay(3).cycles, 0);
}

// Each breaks one thing of the training forward.
TEST(Parity, EveryFaultIsSeen) {
  ParityRig p;
  const ParityRig::Broken sound{p.model, p.rig.weights, {}, 0};
  const auto differs = [&](const char* what, const std::function<void(ParityRig::Broken&)>& fault) {
    ParityRig::Broken broken = sound;
    fault(broken);
    const Parity parity = p.replay(kRow, broken);
    printf("%-28s %3.0f of %3.0f cycles differ, %.0f near ties\n", what, parity.different, parity.cycles,
           parity.near_ties);
    EXPECT_EQ(parity.cycles, cycles_of(p)) << what;
    EXPECT_GE(parity.different, 2) << what;
    EXPECT_TRUE(parity_fails(parity)) << what;
    EXPECT_THAT(parity_complaint(parity), HasSubstr(parity.first)) << what;
    EXPECT_THAT(parity.first, HasSubstr("decoding accepted")) << what;
  };
  using Broken = ParityRig::Broken;
  differs("taps off by one", [](Broken& b) { b.model.taps = {1, 3}; });
  differs("taps in another order", [](Broken& b) { std::swap(b.model.taps[0], b.model.taps[1]); });
  differs("features of the next token", [](Broken& b) { b.shift = 1; });
  differs("the anchor in its context", [](Broken& b) {
    b.on_blocks = [](RowBlocks& r) {
      for (int& a : r.anchor) ++a;
    };
  });
  differs("positions from 1", [](Broken& b) {
    b.on_blocks = [](RowBlocks& r) {
      for (int& x : r.position) ++x;
    };
  });
  differs("another document in sight",
          [](Broken& b) { b.on_blocks = [](RowBlocks& r) { std::fill(r.lo.begin(), r.lo.end(), 0); }; });
  differs("another mask token", [](Broken& b) { b.model.mask_token = 65; });
  differs("another rotary base", [](Broken& b) { b.model.rope.theta = 1e6; });
  differs("a window", [](Broken& b) { b.model.sliding[0] = true, b.model.window = 12; });
  differs("weights of another step",
          [](Broken& b) { b.weights = initial_parameters(b.model, parameter_layout(b.model), 1); });
}

TEST(Parity, ANearTieIsNoDifference) {
  Prompts prompts;
  prompts.list.push_back({7, {1, 2, 3}, -1});
  Response r;
  r.cycles = {{3, 3}, {6, 1}, {7, 8}};
  const std::vector<Response> responses = {r};
  const std::vector<DecodedCycle> cycles = {{0, 0}, {0, 1}, {0, 2}};
  const auto compare = [&](std::vector<ReplayedBlock> blocks) {
    Parity p;
    compare_cycles(p, prompts, responses, cycles, blocks, 0.05f);
    return p;
  };
  const ReplayedBlock last{4, 4, {1, 1, 1, 1}};  // the response ends after 4 labels: 7 accepted are 4
  Parity p = compare({{7, 2, {1, 1, -1}}, {7, 0, {-2}}, last});
  EXPECT_EQ(p.equal, 3);
  p = compare({{7, 1, {1, -0.01f}}, {7, 1, {0.04f, -1}}, last});
  EXPECT_EQ(p.equal, 1);
  EXPECT_EQ(p.near_ties, 2);
  EXPECT_FLOAT_EQ(static_cast<float>(p.largest_gap), 0.04f);
  EXPECT_EQ(p.first, "");
  p = compare({{7, 3, {1, 1, 0.06f, -1}}, {7, 0, {-2}}, {4, 3, {1, 1, 1, -0.2f}}});
  EXPECT_EQ(p.different, 2);
  EXPECT_THAT(
      p.first,
      HasSubstr("document 7, the cycle at position 3: decoding accepted 2 drafts, the training forward 3"));
}

TEST(Parity, NearTiesEverywhereAreAFault) {
  Parity p;
  p.cycles = 20, p.equal = 17, p.near_ties = 3;
  EXPECT_FALSE(parity_fails(p));
  p.equal = 16, p.near_ties = 4;
  EXPECT_TRUE(parity_fails(p));
  EXPECT_THAT(parity_complaint(p), HasSubstr("4 of 20 cycles (all of them near ties"));
  p.cycles = 400;
  EXPECT_FALSE(parity_fails(p));
  // A drafter of zeros: every logit ties with every other.
  ParityRig rig;
  ParityRig::Broken zeros{rig.model, std::vector<float>(rig.rig.weights.size()), {}, 0};
  p = rig.replay(kRow, zeros);
  EXPECT_EQ(p.different, 0);
  EXPECT_TRUE(parity_fails(p));
}

}  // namespace
}  // namespace slip::testing
