// A hybrid target (gated delta nets and attention) with an untrained drafter, cached as they decode, on the
// device and in the type that the executable is for; and drafters that know the answer.
#pragma once
#include <gtest/gtest.h>

#include "decode/decoder.hpp"
#include "kernels/matmul.hpp"
#include "kernels/rmsnorm.hpp"
#include "kernels/sample.hpp"
#include "model/synthetic.hpp"
#include "support/test_device.hpp"

namespace slip::testing {

using Ids = std::vector<int32_t>;

enum class Weights { golden, wide };  // tests/golden/tiny-qwen3_5; made up, with heads of 128 columns

inline TargetModel hybrid_model(Weights kind) {
  TargetModel m = read_target_config(std::string(SLIP_SOURCE_DIR) + "/tests/golden/tiny-qwen3_5");
  if (kind == Weights::golden) return m;
  m.delta.key_dim = m.delta.value_dim = 128;
  return m;
}
inline DrafterModel hybrid_drafter() {
  DrafterModel m = read_drafter_config(std::string(SLIP_SOURCE_DIR) + "/tests/golden/tiny-drafter");
  m.hidden = 64, m.vocab = 256, m.mask_token = 255, m.taps = {0, 2}, m.target_layers = 4;
  return m;
}
// Numbers between 0 and 254 that no rule of the model's makes likely.
inline Ids hybrid_prompt(int64_t tokens, int seed) {
  Ids out;
  for (int64_t t = 0; t < tokens; ++t)
    out.push_back(
        static_cast<int32_t>(random_u64(static_cast<uint64_t>(seed), 3, static_cast<uint64_t>(t)) % 255));
  return out;
}
inline Ids ids_of(const Response& r) {
  Ids out;
  for (const Choice& c : r.tokens) out.push_back(c.token);
  return out;
}

template <class T> class HybridRig {
 public:
  explicit HybridRig(Weights kind = Weights::golden, int64_t block = 8, int64_t pass_tokens = 24)
      : model(hybrid_drafter()), block(block) {
    const TargetModel m = hybrid_model(kind);
    const CacheLimits limits{400, pass_tokens, block};
    const TargetParts all{m.layers, true, true};
    target.emplace(make_cached_target<T>(
        m,
        kind == Weights::wide
            ? synthetic_target<T>(m, all, 5, arena, queue.get())
            : load_target<T>(m, WeightFolder(std::string(SLIP_SOURCE_DIR) + "/tests/golden/tiny-qwen3_5"),
                             all, arena, queue),
        model.taps, limits, arena, queue));
    drafter.emplace(make_cached_drafter<T>(model, block, limits, arena, queue));
    set_weights(drafter->drafter, initial_parameters(model, drafter->drafter.layout, 1), queue);
  }
  HybridRig(const HybridRig&) = delete;
  HybridRig& operator=(const HybridRig&) = delete;

  Decoder<T> decoder() { return Decoder<T>(*target, &*drafter, queue); }
  Response decode(const Ids& prompt, int64_t most) {
    Decoder<T> d = decoder();
    return speculate(d, prompt, {block, most, {}});
  }
  Response decode_plain(const Ids& prompt, int64_t most) {
    Decoder<T> d(*target, nullptr, queue);
    return speculate(d, prompt, {1, most, {}});
  }
  // What is remembered of the accepted tokens: keys and values, states, inputs of the convolutions.
  std::vector<std::vector<double>> memory() const {
    std::vector<std::vector<double>> out;
    const DeltaCache<T>& c = target->delta;
    for (const View2<T>& kv : target->kv)
      if (!kv.empty()) out.push_back(values_of(kv.rows_from(0, target->length), queue.get()));
    for (int64_t l = 0; l < c.layers; ++l) {
      out.push_back(values_of(View2<Acc<T>>(c.state + l * c.state_size, 1, c.state_size), queue.get()));
      out.push_back(values_of(c.rows.rows_from(l * (c.history + c.kept), c.history).cols_from(0, c.conv.cols),
                              queue.get()));
    }
    return out;
  }

  DrafterModel model;
  int64_t block;
  TestQueue queue = make_queue(kTestDevice);
  Arena arena{kTestDevice};
  std::optional<CachedTarget<T>> target;
  std::optional<CachedDrafter<T>> drafter;
};

// The target's own greedy answer, everything anew for every token: packed prefill, final norm, head.
template <class T> Response uncached_answer(const HybridRig<T>& rig, const Ids& prompt, int64_t most) {
  const Queue& queue = rig.queue.get();
  const TargetModel& m = rig.target->target.model;
  Arena arena(kTestDevice);
  const Target<T> target{m, rig.target->target.weights, make_target_buffers<T>(m, 400, arena, queue), {}};
  PackedRow row("row", 400, arena);
  const View2<T> y = arena.take2<T>("y", 1, m.hidden);
  const View2<Acc<T>> logits = arena.take2<Acc<T>>("logits", 1, m.vocab);
  int* const token = arena.take<int>("token", 1);
  float* const margin = arena.take<float>("margin", 1);
  Ids all = prompt;
  Response r;
  while (static_cast<int64_t>(r.tokens.size()) < most) {
    const int64_t lengths[] = {static_cast<int64_t>(all.size())};
    target_forward<T>(target, row.set(all, lengths, queue), {m.layers - 1}, queue,
                      [&](int, View2<const T> x) {
                        rmsnorm_fwd<T>({.x = x.rows_from(x.rows - 1, 1),
                                        .gain = target.weights.norm,
                                        .eps = m.eps,
                                        .y = y,
                                        .inv_rms = nullptr,
                                        .centred = true},
                                       queue);
                      });
    matmul<T, Acc<T>>({Product::nt, y, target.weights.head, logits}, queue);
    sample_rows<T>({.logits = logits, .temperature = 0, .token = token, .margin = margin}, queue);
    r.tokens.push_back({downloaded(token, 1, queue)[0], downloaded(margin, 1, queue)[0]});
    all.push_back(r.tokens.back().token);
  }
  return r;
}

// A drafter that knows the answer and errs at every position that `errs` says.
template <class T> struct Oracle {
  HybridRig<T>& rig;
  Ids answer;  // from position `first` on
  int64_t first;
  std::function<bool(int64_t position)> errs;
  int32_t other = 1;         // what is added where it errs, and to all drafts after that
  bool rejected_too = true;  // false: what it errs about is not even run through the target
  Decoder<T> decoder = rig.decoder();
  std::vector<int> expected = {};

  Choice prefill(std::span<const int32_t> prompt) { return decoder.prefill(prompt); }
  void propose(int64_t start, std::span<int32_t> block) {
    int64_t right = 1;
    bool wrong = false;
    for (size_t j = 1; j < block.size(); ++j) {
      const int64_t position = start + static_cast<int64_t>(j), at = position - first;
      const int32_t token = at < static_cast<int64_t>(answer.size()) ? answer[static_cast<size_t>(at)] : 0;
      wrong = wrong || errs(position) || at >= static_cast<int64_t>(answer.size());
      block[j] = wrong ? (token + other) % 255 : token;
      right += !wrong;
    }
    expected.push_back(static_cast<int>(right));
  }
  void verify(int64_t start, std::span<const int32_t> block, std::span<Choice> choices) {
    const size_t run = rejected_too ? block.size() : static_cast<size_t>(expected.back());
    decoder.verify(start, block.first(run), choices.first(run));
    for (size_t j = run; j < choices.size(); ++j) choices[j] = {-1, 0};
  }
  void commit(int64_t count) { decoder.commit(count); }
};

}  // namespace slip::testing
