// The tiny target with a drafter, cached as they decode, and the same two without any cache.
#pragma once
#include <gtest/gtest.h>

#include "decode/decoder.hpp"
#include "kernels/features.hpp"
#include "kernels/matmul.hpp"
#include "kernels/rmsnorm.hpp"
#include "kernels/sample.hpp"
#include "train/step.hpp"

namespace slip::testing {

using Ids = std::vector<int32_t>;
inline constexpr int kEnd = 257;  // <|im_end|>

inline std::string root(const std::string& path) { return std::string(SLIP_SOURCE_DIR) + "/" + path; }
// The tiny run's template around a question.
inline Ids question(const std::string& text) {
  Ids out = {256};
  const auto add = [&](const std::string& s) { out.insert(out.end(), s.begin(), s.end()); };
  add("user\n" + text);
  out.push_back(kEnd);
  add("\n");
  out.push_back(256);
  add("assistant\n");
  return out;
}
inline Ids ids_of(const Response& r) {
  Ids out;
  for (const Choice& c : r.tokens) out.push_back(c.token);
  return out;
}

struct DrafterKind {
  bool trained = true;
  bool sliding = false;  // first layer: causal inside the block, window 12
};

class DecodeRig {
 public:
  static constexpr int64_t kPositions = 320;

  explicit DecodeRig(const DrafterKind& kind = {}, int64_t block = 8, int64_t pass_tokens = 24)
      : block_(block) {
    model = read_drafter_config(root("tests/golden/tiny-drafter"));
    if (kind.sliding) model.sliding[0] = model.causal[0] = true, model.window = 12;
    const TargetModel target_model = read_target_config(root("data/tiny/target"));
    const WeightFolder folder(root("data/tiny/target"));
    const ParameterLayout layout = parameter_layout(model);
    weights = kind.trained ? published_parameters(layout, root("tests/golden/tiny-drafter"))
                           : initial_parameters(model, layout, 1);
    const CacheLimits limits{kPositions, pass_tokens, block};
    target.emplace(make_cached_target<float>(
        target_model,
        load_target<float>(target_model, folder, {target_model.layers, true, true}, arena, queue), model.taps,
        limits, arena, queue));
    drafter.emplace(make_cached_drafter<float>(model, block, limits, arena, queue));
    set_weights(drafter->drafter, weights, queue);
  }
  DecodeRig(const DecodeRig&) = delete;
  DecodeRig& operator=(const DecodeRig&) = delete;

  SpeculateRule rule(int64_t most = 60) const { return {block_, most, {kEnd}}; }
  Decoder<float> decoder() { return Decoder<float>(*target, &*drafter, queue); }
  Decoder<float> plain() { return Decoder<float>(*target, nullptr, queue); }
  Response decode(const Ids& prompt, int64_t most = 60) {
    Decoder<float> d = decoder();
    return speculate(d, prompt, rule(most));
  }
  Response decode_plain(const Ids& prompt, int64_t most = 60) {
    Decoder<float> d = plain();
    return speculate(d, prompt, {1, most, {kEnd}});
  }

  DrafterModel model;
  std::vector<float> weights;
  Queue queue;
  Arena arena{Device::cpu};
  std::optional<CachedTarget<float>> target;
  std::optional<CachedDrafter<float>> drafter;

 private:
  int64_t block_;
};

// The same models by packed prefill and the training forward, everything anew in every cycle.
class Uncached {
 public:
  explicit Uncached(const DecodeRig& rig, int64_t block = 8)
      : rig_(rig),
        target_{
            rig.target->target.model,
            rig.target->target.weights,
            make_target_buffers<float>(rig.target->target.model, DecodeRig::kPositions, arena_, rig.queue),
            {}},
        row_("row", DecodeRig::kPositions, arena_) {
    DrafterModel m = rig.model;
    m.block = block;
    drafter.emplace(
        make_drafter<float>(m, {DecodeRig::kPositions, 64, DecodeRig::kPositions}, arena_, rig.queue));
    set_weights(*drafter, rig.weights, rig.queue);
    pass.emplace(make_pass_buffers<float>(m, drafter->limits, arena_));
  }

  Choice prefill(std::span<const int32_t> prompt) {
    ids.assign(prompt.begin(), prompt.end());
    return choices(ids, 1)[0];
  }
  void propose(int64_t start, std::span<int32_t> block) {
    forward(ids);
    const float* const hidden = hidden_of(start, block[0]);
    const View2<const float> rows(hidden, static_cast<int64_t>(block.size()), rig_.model.hidden);
    Ids best = argmax(rows);
    std::copy(best.begin() + 1, best.end(), block.begin() + 1);
  }
  void verify(int64_t start, std::span<const int32_t> block, std::span<Choice> out) {
    EXPECT_EQ(start, static_cast<int64_t>(ids.size()));
    block_.assign(block.begin(), block.end());
    Ids all = ids;
    all.insert(all.end(), block.begin(), block.end());
    const std::vector<Choice> last = choices(all, static_cast<int64_t>(block.size()));
    std::copy(last.begin(), last.end(), out.begin());
  }
  void commit(int64_t count) { ids.insert(ids.end(), block_.begin(), block_.begin() + count); }

  // Fills the features of all tokens; the packed row stays in row_.
  Packed forward(const Ids& all) {
    const int64_t h = rig_.model.hidden, n = static_cast<int64_t>(all.size());
    features.resize(rig_.model.taps.size() * static_cast<size_t>(n * h));
    const int64_t lengths[] = {n};
    const Packed in = row_.set(all, lengths, rig_.queue);
    target_forward<float>(
        target_, in, rig_.model.taps, rig_.queue, [](int, View2<const float>) {},
        [&](int i) { return features.data() + i * n * h; });
    return in;
  }
  // Of the drafter's rows after the final norm.
  Ids argmax(const View2<const float>& hidden) { return sample(hidden, nullptr); }

  Ids ids;                     // accepted tokens
  std::vector<Bf16> features;  // [taps][tokens][H]
  std::optional<Drafter<float>> drafter;
  std::optional<PassBuffers<float>> pass;

 private:
  const float* hidden_of(int64_t start, int32_t token) {
    Drafter<float>& d = *drafter;
    int bad = 0;
    join_taps<float>({features.data(), start, static_cast<int>(d.model.taps.size()),
                      d.context.x.rows_from(0, start), &bad},
                     rig_.queue);
    EXPECT_EQ(bad, 0);
    std::vector<int> position(static_cast<size_t>(DecodeRig::kPositions));
    for (size_t p = 0; p < position.size(); ++p) position[p] = static_cast<int>(p);
    context_forward(d, start, position.data(), rig_.queue);
    std::vector<int> block(static_cast<size_t>(d.model.block), static_cast<int>(d.model.mask_token));
    block[0] = token;
    const int anchor = static_cast<int>(start), lo = 0;
    blocks_forward<float>(d, {1, block.data(), position.data() + start, &anchor, &lo}, start,
                          target_.weights.embed, rig_.queue);
    return d.blocks.hidden.data;
  }
  std::vector<Choice> choices(const Ids& all, int64_t last) {
    const TargetModel& m = target_.model;
    const int64_t lengths[] = {static_cast<int64_t>(all.size())};
    std::vector<float> y(static_cast<size_t>(last * m.hidden)), margin;
    const View2<float> normed(y.data(), last, m.hidden);
    target_forward<float>(target_, row_.set(all, lengths, rig_.queue), {m.layers - 1}, rig_.queue,
                          [&](int, View2<const float> x) {
                            rmsnorm_fwd<float>({.x = x.rows_from(x.rows - last, last),
                                                .gain = target_.weights.norm,
                                                .eps = m.eps,
                                                .y = normed,
                                                .inv_rms = nullptr},
                                               rig_.queue);
                          });
    const Ids token = sample(normed, &margin);
    std::vector<Choice> out;
    for (size_t j = 0; j < token.size(); ++j) out.push_back({token[j], margin[j]});
    return out;
  }
  Ids sample(const View2<const float>& hidden, std::vector<float>* margin) {
    const int64_t vocab = target_.model.vocab;
    std::vector<float> logits(static_cast<size_t>(hidden.rows * vocab)),
        gap(static_cast<size_t>(hidden.rows));
    const View2<float> out(logits.data(), hidden.rows, vocab);
    matmul<float, float>({Product::nt, hidden, target_.weights.head, out}, rig_.queue);
    std::vector<int> token(static_cast<size_t>(hidden.rows));
    sample_rows<float>({.logits = out, .temperature = 0, .token = token.data(), .margin = gap.data()},
                       rig_.queue);
    if (margin != nullptr) *margin = gap;
    return {token.begin(), token.end()};
  }

  const DecodeRig& rig_;
  Arena arena_{Device::cpu};
  Target<float> target_;
  PackedRow row_;
  Ids block_;
};

}  // namespace slip::testing
