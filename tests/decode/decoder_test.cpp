// Decoding with caches on the tiny target: what must hold for any drafter, and that training says the same.
#include "decode/decoder.hpp"

#include <span>

#include "decode/decode_rig.hpp"
#include "support/near.hpp"

namespace slip::testing {
namespace {

const std::string kQuestions[] = {"How much is 74 plus 22?", "Count from 82 to 92.", "Spell the word dream.",
                                  "Is 478 even or odd?"};
#ifdef __SANITIZE_ADDRESS__  // products are not optimised there: blocks of 1 and 8, less to say
constexpr int64_t kBlockStep = 7, kWithout = 12;
constexpr size_t kAsked = 2;
#else
constexpr int64_t kBlockStep = 1, kWithout = 30;
constexpr size_t kAsked = std::size(kQuestions);
#endif
constexpr DrafterKind kKinds[] = {{true, false}, {false, false}, {true, true}};

std::vector<double> values(const View2<const float>& v) {
  std::vector<double> out;
  for (int64_t r = 0; r < v.rows; ++r) out.insert(out.end(), v.row(r), v.row(r) + v.cols);
  return out;
}
// Everything that the caches hold of the accepted tokens.
std::vector<std::vector<double>> caches(const DecodeRig& rig) {
  std::vector<std::vector<double>> out;
  for (const auto& kv : rig.target->kv) out.push_back(values(kv.rows_from(0, rig.target->length)));
  const ContextBuffers<float>& c = rig.drafter->drafter.context;
  out.push_back(values(c.k.rows_from(0, rig.drafter->length)));
  for (size_t l = 0; l < rig.drafter->drafter.w.layers.size();
       ++l) {  // keys before rotation are scratch: values only
    const int64_t width = rig.model.kv_heads * rig.model.head_dim;
    out.push_back(values(c.kv.rows_from(0, rig.drafter->length)
                             .cols_from(static_cast<int64_t>(l) * 2 * width + width, width)));
  }
  return out;
}

TEST(Decoder, GreedyOutputIsTheTargetsOwnForAnyDrafterAndBlock) {
  for (const DrafterKind& kind : kKinds) {
    for (int64_t block = 1; block <= 8; block += kBlockStep) {
      DecodeRig rig(kind, block);
      for (const std::string& q : std::span(kQuestions).first(kAsked)) {
        SCOPED_TRACE(q + " block " + std::to_string(block));
        EXPECT_EQ(ids_of(rig.decode(question(q), 24)), ids_of(rig.decode_plain(question(q), 24)));
      }
    }
  }
}

TEST(Decoder, TheTargetAnswers) {
  DecodeRig rig;
  const Ids answer = ids_of(rig.decode(question(kQuestions[0])));
  EXPECT_EQ(std::string(answer.begin(), answer.end() - 1), "74 + 22 = 96.");
  EXPECT_EQ(answer.back(), kEnd);
}

TEST(Decoder, WithCachesAsWithout) {
  for (const DrafterKind& kind : kKinds) {
    DecodeRig rig(kind);
    Uncached uncached(rig);
    for (const std::string& q : {kQuestions[1], kQuestions[2]}) {
      SCOPED_TRACE(q);
      const Response got = rig.decode(question(q), kWithout),
                     want = speculate(uncached, question(q), rig.rule(kWithout));
      EXPECT_EQ(ids_of(got), ids_of(want));
      ASSERT_EQ(got.cycles.size(), want.cycles.size());
      for (size_t i = 0; i < got.cycles.size(); ++i) {
        EXPECT_EQ(got.cycles[i].advance, want.cycles[i].advance) << "cycle " << i;
      }
    }
  }
}

TEST(Decoder, ALongPromptInPiecesOrAtOnce) {
  const Ids prompt = question("Jack is a 18 year old sailor from Tokyo. Write it as JSON.");
  DecodeRig pieces({}, 8, 8), whole({}, 8, 200);
  EXPECT_EQ(ids_of(pieces.decode(prompt)), ids_of(whole.decode(prompt)));
}

// What was rejected leaves no trace: the caches are those of a prefill of the accepted tokens, and bit by bit
// those of the same passes with other tokens in the rejected slots.
struct Spoiled {
  Decoder<float> decoder;
  DecodeRig& rig;
  std::vector<int> advance;  // of the cycles of an earlier run
  size_t cycle = 0;
  Choice prefill(std::span<const int32_t> prompt) { return decoder.prefill(prompt); }
  void propose(int64_t start, std::span<int32_t> block) {
    decoder.propose(start, block);
    for (size_t j = static_cast<size_t>(advance.at(cycle)); j < block.size(); ++j)
      block[j] = (block[j] + 17) % 256;
    ++cycle;
  }
  void verify(int64_t start, std::span<const int32_t> block, std::span<Choice> choices) {
    decoder.verify(start, block, choices);
    const size_t first = static_cast<size_t>(advance.at(cycle - 1));
    if (first == block.size()) return;
    EXPECT_NE(block[first], choices[first - 1].token) << "the test needs another offset";
  }
  void commit(int64_t count) { decoder.commit(count); }
};

TEST(Decoder, AfterRejectionsTheCachesEqualAFreshPrefill) {
  for (const DrafterKind& kind : kKinds) {
    DecodeRig rig(kind), fresh(kind, 8, 200);
    const Ids prompt = question(kQuestions[1]);
    const Response r = rig.decode(prompt, 40);
    int rejected = 0;
    std::vector<int> advance;
    for (const Cycle& c : r.cycles) rejected += c.advance < 8, advance.push_back(c.advance);
    EXPECT_GT(rejected, 2);
    const auto got = caches(rig);
    const int64_t length = rig.target->length;
    EXPECT_EQ(rig.drafter->length, length);
    EXPECT_GT(length, static_cast<int64_t>(prompt.size()) + 10);
    Ids all = prompt;
    for (const int32_t t : ids_of(r)) all.push_back(t);
    all.resize(static_cast<size_t>(length));
    fresh.decoder().prefill(all);
    const auto want = caches(fresh);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].size(), want[i].size());
      // The drafter caches what it makes of features: one that rounds to the neighbouring bf16 moves it.
      const bool of_drafter = i >= rig.target->kv.size();
      EXPECT_LE(relative_error(got[i], want[i]), of_drafter ? 1e-4 : 1e-5) << "cache " << i;
    }
    DecodeRig other(kind);
    Spoiled spoiled{other.decoder(), other, advance};
    const Response again = speculate(spoiled, prompt, other.rule(40));
    EXPECT_EQ(ids_of(again), ids_of(r));
    EXPECT_EQ(caches(other), got);
  }
}

// Decodes and keeps what the drafter said in every cycle, and the features of the accepted tokens.
struct Recorder {
  Decoder<float> decoder;
  DecodeRig& rig;
  std::vector<std::vector<double>> hidden;
  std::vector<std::vector<Bf16>> features;  // per tap

  Choice prefill(std::span<const int32_t> prompt) {
    const Choice c = decoder.prefill(prompt);  // in one pass
    features.resize(rig.model.taps.size());
    keep(static_cast<int64_t>(prompt.size()));
    return c;
  }
  void propose(int64_t start, std::span<int32_t> block) {
    decoder.propose(start, block);
    hidden.push_back(values(rig.drafter->drafter.blocks.hidden));
  }
  void verify(int64_t start, std::span<const int32_t> block, std::span<Choice> choices) {
    decoder.verify(start, block, choices);
  }
  void commit(int64_t count) {
    keep(count);
    decoder.commit(count);
  }
  void keep(int64_t count) {
    const int64_t h = rig.model.hidden, tokens = rig.target->limits.tokens;
    for (size_t i = 0; i < features.size(); ++i) {
      const Bf16* const tap = rig.target->features + static_cast<int64_t>(i) * tokens * h;
      features[i].insert(features[i].end(), tap, tap + count * h);
    }
  }
};
std::vector<double> floats(std::span<const Bf16> v) {
  std::vector<double> out;
  for (const Bf16 x : v) out.push_back(to_float(x));
  return out;
}

// E6, and the parity that matters: the training forward at the anchors of the decode says what decoding said,
// and the tokens it would choose give the lengths that were decoded. Features that are computed in one piece
// may round to the neighbouring bf16; from the decode's own the drafter agrees to fp32.
TEST(Decoder, E6TheTrainingForwardGivesTheDecodedLengths) {
  for (const DrafterKind& kind : kKinds) {
    for (const std::string& q : std::span(kQuestions).first(kAsked)) {
      SCOPED_TRACE(q);
      DecodeRig rig(kind, 8, 200);
      const Ids prompt = question(q);
      Recorder recorder{rig.decoder(), rig, {}, {}};
      const Response r = speculate(recorder, prompt, rig.rule(40));
      Uncached training(rig);
      Ids all = prompt;
      for (const int32_t t : ids_of(r)) all.push_back(t);
      std::vector<uint8_t> mask(all.size(), 1);
      std::fill_n(mask.begin(), prompt.size(), 0);
      RowBlocks blocks;
      std::vector<int> anchors;
      for (const Cycle& c : r.cycles) anchors.push_back(static_cast<int>(c.start));
      add_document(blocks, rig.model, LabelMask::prefix, all, mask, anchors, 0);
      blocks.block = rig.model.block;
      ASSERT_EQ(blocks.count(), static_cast<int64_t>(r.cycles.size()));
      const Packed in = training.forward(all);
      const int64_t b = rig.model.block, h = rig.model.hidden, context = blocks.context();
      Drafter<float>& d = *training.drafter;
      std::vector<Bf16> joined;
      for (size_t i = 0; i < recorder.features.size(); ++i) {
        const std::span<const Bf16> own =
            std::span<const Bf16>(recorder.features[i]).first(static_cast<size_t>(context * h));
        const std::span<const Bf16> whole(training.features.data() + static_cast<int64_t>(i) * in.tokens * h,
                                          own.size());
        EXPECT_TRUE(near(floats(own), floats(whole), 1e-4, 1.0 / 128)) << "tap " << i;
        joined.insert(joined.end(), own.begin(), own.end());
      }
      int bad = 0;
      join_taps<float>({joined.data(), context, static_cast<int>(rig.model.taps.size()),
                        d.context.x.rows_from(0, context), &bad},
                       rig.queue);
      std::vector<float> hidden;
      run_blocks<float>(d, *training.pass, in.position, blocks, rig.target->target.weights.embed,
                        rig.target->target.weights.head, {}, RowMode::evaluate, rig.queue, &hidden);
      for (size_t i = 0; i < r.cycles.size(); ++i) {
        const int64_t row = static_cast<int64_t>(i) * b;
        const View2<const float> mine(hidden.data() + row * h, b, h);
        EXPECT_TRUE(near(recorder.hidden[i], values(mine), 1e-4, 1e-4)) << "cycle " << i;
        const Ids best = training.argmax(mine);
        int advance = 1, labels = 1;
        while (labels < b && blocks.valid[static_cast<size_t>(row + labels)] != 0) ++labels;
        while (advance < labels &&
               best[static_cast<size_t>(advance)] == blocks.label[static_cast<size_t>(row + advance)])
          ++advance;
        EXPECT_EQ(advance, std::min(r.cycles[i].advance, labels)) << "cycle " << i;
      }
    }
  }
}

// Sampled tokens belong to their positions, so speculation changes none of them.
TEST(Decoder, SampledOutputIsTheTargetsOwn) {
  DecodeRig rig;
  const Ids prompt = question("Continue: In the beginning");
  std::vector<Ids> seen;
  for (const uint64_t seed : {1, 2, 3}) {
    Decoder<float> decoder = rig.decoder(), plain = rig.plain();
    decoder.sampling = plain.sampling = {1.0f, seed, 4};
    const Ids got = ids_of(speculate(decoder, prompt, rig.rule(40)));
    EXPECT_EQ(got, ids_of(speculate(plain, prompt, {1, 40, {kEnd}})));
    seen.push_back(got);
  }
  EXPECT_NE(seen[0], seen[1]);
  EXPECT_NE(seen[1], seen[2]);
}

TEST(Decoder, RefusesWhatItHasNoRoomFor) {
  DecodeRig rig;
  Decoder<float> plain = rig.plain();
  EXPECT_THROW(speculate(plain, Ids{1, 2}, {2, 4, {}}), Error);  // drafts without a drafter
  EXPECT_THROW(rig.decode(Ids(DecodeRig::kPositions - 4, 65)), Error);
  EXPECT_THROW(make_cached_drafter<float>(rig.model, 9, {16, 8, 8}, rig.arena, rig.queue), Error);
}

}  // namespace
}  // namespace slip::testing
