// Decoding with a target whose gated delta nets carry a state: it must be what the accepted tokens alone make
// of it.
#include "decode/hybrid_rig.hpp"
#include "support/near.hpp"

namespace slip::testing {
namespace {

using Numbers = std::vector<int64_t>;
// All of them, or the few where products are not optimised.
Numbers chosen([[maybe_unused]] const Numbers& all, [[maybe_unused]] const Numbers& few) {
#ifdef __SANITIZE_ADDRESS__
  return few;
#else
  return all;
#endif
}
constexpr Weights kWeights[] = {Weights::golden, Weights::wide};

#if SLIP_TEST_GPU
using Types = ::testing::Types<float, Bf16>;
#else
using Types = ::testing::Types<float>;
#endif
template <class T> class Hybrid : public ::testing::Test {};
TYPED_TEST_SUITE(Hybrid, Types);

// fp32: token by token. In bf16 up to the first tie, since there products of one row and of eight round
// differently: on an H200 the only difference was at 0.0003, with logits of up to 1.6.
template <class T> void expect_same_answer(const Response& got, const Response& want) {
  ASSERT_EQ(got.tokens.size(), want.tokens.size());
  for (size_t i = 0; i < want.tokens.size(); ++i) {
    if (got.tokens[i].token == want.tokens[i].token) continue;
    const float lead = std::min(got.tokens[i].margin, want.tokens[i].margin);
    std::cout << "token " << i << " differs; the logits are " << lead << " from a tie\n";
    EXPECT_LE(lead, sizeof(T) == 2 ? 0.002f : 0.0f) << "token " << i;
    return;
  }
}

using Memory = std::vector<std::vector<double>>;
template <class T> void expect_near_memory(const Memory& got, const Memory& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), want[i].size());
    EXPECT_LE(relative_error(got[i], want[i]), sizeof(T) == 2 ? 5e-2 : 1e-5) << "memory " << i;
  }
}

TYPED_TEST(Hybrid, GreedyOutputIsTheTargetsOwnForAnyDrafterAndBlock) {
  using T = TypeParam;
  for (const Weights kind : kWeights) {
    for (const int64_t block : chosen({1, 2, 3, 4, 5, 6, 7, 8}, {8})) {
      HybridRig<T> rig(kind, block);
      for (const int64_t length : chosen({1, 3, 30, 70}, {3, 30})) {
        SCOPED_TRACE(std::to_string(length) + " tokens, block " + std::to_string(block));
        const Ids prompt = hybrid_prompt(length, 1);
        const Response want = rig.decode_plain(prompt, 20);
        expect_same_answer<T>(rig.decode(prompt, 20), want);
        // Drafters that are right, never right, and right for a while.
        for (const int64_t every : chosen({1000, 1, 3, 5}, {3})) {
          Oracle<T> oracle{rig, ids_of(want), length, [&](int64_t p) { return p % every == 0; }};
          const Response got = speculate(oracle, std::span<const int32_t>(prompt), {block, 20, {}});
          expect_same_answer<T>(got, want);
          if (sizeof(T) == 2) continue;
          for (size_t i = 0; i < got.cycles.size(); ++i)
            EXPECT_EQ(got.cycles[i].advance, oracle.expected[i]) << "cycle " << i << ", every " << every;
        }
      }
    }
  }
}

TYPED_TEST(Hybrid, WithCachesAsWithout) {
  using T = TypeParam;
  for (const Weights kind : kWeights) {
    HybridRig<T> rig(kind);
    for (const int64_t length : chosen({2, 60}, {20})) {
      SCOPED_TRACE("prompt of " + std::to_string(length));
      const Ids prompt = hybrid_prompt(length, 6);
      const Response want = uncached_answer(rig, prompt, 16);
      expect_same_answer<T>(rig.decode(prompt, 16), want);
      Oracle<T> oracle{rig, ids_of(want), length, [](int64_t p) { return p % 4 == 1; }};
      expect_same_answer<T>(speculate(oracle, std::span<const int32_t>(prompt), {8, 16, {}}), want);
    }
  }
}

TYPED_TEST(Hybrid, AResponseDoesNotDependOnTheOneBefore) {
  using T = TypeParam;
  HybridRig<T> rig;
  const Ids a = hybrid_prompt(30, 1), b = hybrid_prompt(2, 2);
  const Ids first = ids_of(rig.decode(a, 20)), other = ids_of(rig.decode(b, 20));
  EXPECT_EQ(ids_of(rig.decode(a, 20)), first);
  HybridRig<T> fresh;
  EXPECT_EQ(ids_of(fresh.decode(b, 20)), other);
  EXPECT_NE(first, other);
}

// Pieces of any length leave the state of one piece.
TYPED_TEST(Hybrid, ALongPromptInPiecesOrAtOnce) {
  using T = TypeParam;
  for (const Weights kind : kWeights) {
    const Ids prompt = hybrid_prompt(150, 3);
    HybridRig<T> whole(kind, 8, 200);
    whole.decoder().prefill(prompt);
    const auto want = whole.memory();
    for (const int64_t piece : chosen({8, 9, 64, 65, 149}, {9, 65})) {
      SCOPED_TRACE("pieces of " + std::to_string(piece));
      HybridRig<T> rig(kind, 8, piece);
      rig.decoder().prefill(prompt);
      expect_near_memory<T>(rig.memory(), want);
    }
  }
}

// After rejections what is remembered equals a fresh prefill of the accepted tokens; and bit by bit the same
// passes with other tokens in the rejected slots.
TYPED_TEST(Hybrid, AfterRejectionsTheStateIsThatOfTheAcceptedTokens) {
  using T = TypeParam;
  for (const Weights kind : kWeights) {
    for (const int64_t length : chosen({1, 2, 5, 40}, {2})) {
      SCOPED_TRACE("prompt of " + std::to_string(length));
      const Ids prompt = hybrid_prompt(length, 4);
      HybridRig<T> rig(kind);
      const Ids answer = ids_of(rig.decode_plain(prompt, 40));
      const auto errs = [](int64_t p) { return p % 3 == 0 || p % 7 == 0; };
      const auto run = [&](HybridRig<T>& on, int32_t other, bool rejected_too) {
        Oracle<T> oracle{on, answer, length, errs, other, rejected_too};
        return speculate(oracle, std::span<const int32_t>(prompt), {8, 30, {}});
      };
      const Response r = run(rig, 1, true);
      int rejected = 0;
      for (const Cycle& c : r.cycles) rejected += c.advance < 8;
      EXPECT_GT(rejected, 5);
      EXPECT_GT(rig.target->length, length + 10);
      const auto got = rig.memory();

      HybridRig<T> spoiled(kind);
      EXPECT_EQ(ids_of(run(spoiled, 77, true)), ids_of(r));
      EXPECT_TRUE(spoiled.memory() == got);
      // Without the rejected tokens products have fewer rows and may sum in another order; the rule itself
      // gives the same bits (GatedDelta.TokenByToken).
      HybridRig<T> shorter(kind);
      EXPECT_EQ(ids_of(run(shorter, 1, false)), ids_of(r));
      expect_near_memory<T>(shorter.memory(), got);

      HybridRig<T> fresh(kind, 8, 200);
      Ids all = prompt;
      for (const int32_t t : ids_of(r)) all.push_back(t);
      all.resize(static_cast<size_t>(rig.target->length));
      fresh.decoder().prefill(all);
      expect_near_memory<T>(got, fresh.memory());
    }
  }
}

TYPED_TEST(Hybrid, APieceIsAcceptedAsAWhole) {
  using T = TypeParam;
  HybridRig<T> rig;
  const Ids ids = hybrid_prompt(20, 5);
  const std::span<const int32_t> tokens(ids);
  restart(*rig.target);
  target_pass<T>(*rig.target, tokens, {}, {}, rig.queue);
  EXPECT_THROW(accept_tokens(*rig.target, 19, rig.queue), Error);
  EXPECT_THROW(target_pass<T>(*rig.target, tokens, {}, {}, rig.queue), Error);
  accept_tokens(*rig.target, 20, rig.queue);
  target_pass<T>(*rig.target, tokens.first(8), {}, {}, rig.queue);
  EXPECT_THROW(accept_tokens(*rig.target, 9, rig.queue), Error);
  accept_tokens(*rig.target, 3, rig.queue);
  EXPECT_EQ(rig.target->length, 23);
}

}  // namespace
}  // namespace slip::testing
