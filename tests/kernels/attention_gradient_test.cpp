// The reference and the CPU back end against finite differences of the forward pass, in double.
#include "support/block_attention_case.hpp"
#include "support/finite_difference.hpp"

namespace slip::testing {
namespace {

struct Case {
  const char* name;
  AttentionShape shape;
  std::vector<int> anchor, lo;
};
const Case kCases[] = {
    {"full", {2, 1, 8, 0, 3, 0, false}, {0, 2, 5}, {0, 0, 0}},
    {"full, causal", {2, 1, 8, 0, 3, 0, true}, {1, 6}, {0, 0}},
    {"sliding, causal", {4, 2, 8, 0, 3, 4, true}, {3, 5, 7}, {0, 0, 0}},
    {"sliding, not causal", {2, 2, 8, 0, 3, 4, false}, {3, 7}, {0, 0}},
    {"packed", {4, 1, 8, 0, 2, 0, false}, {2, 3, 3, 5, 8}, {0, 3, 3, 3, 6}},
    {"packed, sliding", {2, 1, 8, 0, 2, 3, true}, {2, 3, 6, 8}, {0, 3, 6, 6}},
};
constexpr int64_t kContext = 9;

TEST(BlockAttentionGradient, EqualsFiniteDifferences) {
  for (const Case& c : kCases) {
    BlockProblem p = make_problem<double>(c.shape, kContext, c.anchor, c.lo);
    Matrix out(p.q.rows, p.q.cols), lse(1, p.q.rows * p.shape.heads);
    const auto loss = [&] {
      const BlockProblem& r = p;
      block_attention_fwd_ref<double>({r.shape, r.q.view(), r.k_context.view(), r.v_context.view(),
                                       r.k_block.view(), r.v_block.view(), r.anchor.data(), r.lo.data(),
                                       out.view(), lse.values.data()});
      return dot(out, r.dout);
    };
    const Matrix dq = finite_difference(p.q, loss);
    const Matrix dk_context = finite_difference(p.k_context, loss),
                 dv_context = finite_difference(p.v_context, loss);
    const Matrix dk_block = finite_difference(p.k_block, loss), dv_block = finite_difference(p.v_block, loss);

    const Queue cpu;
    BlockRun<double> run(p, cpu);
    run.forward(p.shape, cpu);
    run.backward(p.shape, cpu);
    const BlockAnswer ref = reference(p);
    const auto check = [&](const char* who, std::vector<double> got, const Matrix& want,
                           const Matrix* start) {
      SCOPED_TRACE(::testing::Message() << c.name << ", " << who);
      for (size_t i = 0; start != nullptr && i < got.size(); ++i) got[i] -= start->values[i];
      EXPECT_TRUE(near(got, want.values, kDifferenceAbs, kDifferenceRel));
    };
    const Matrix k0 = start_of(p.k_context, 7), v0 = start_of(p.v_context, 8);
    check("dq of the reference", ref.dq.values, dq, nullptr);
    check("dk_block of the reference", ref.dk_block.values, dk_block, nullptr);
    check("dv_block of the reference", ref.dv_block.values, dv_block, nullptr);
    check("dk_context of the reference", ref.dk_context.values, dk_context, &k0);
    check("dv_context of the reference", ref.dv_context.values, dv_context, &v0);
    check("dq", run.dq.values(), dq, nullptr);
    check("dk_block", run.dk_block.values(), dk_block, nullptr);
    check("dv_block", run.dv_block.values(), dv_block, nullptr);
    check("dk_context", run.dk_context.values(), dk_context, &k0);
    check("dv_context", run.dv_context.values(), dv_context, &v0);
  }
}

// One head, two context keys, one slot, by hand: scores 0, ln 3 and ln 4 are probabilities 1/8, 3/8, 4/8.
TEST(AttentionReference, OneRowByHand) {
  const double ln3 = std::log(3.0), ln4 = std::log(4.0);
  const Matrix q(1, 1, {2}), kc(2, 1, {0, ln3}), vc(2, 1, {8, 16}), kb(1, 1, {ln4}), vb(1, 1, {-4});
  const int anchor = 2, lo = 0;
  Matrix out(1, 1), lse(1, 1);
  block_attention_fwd_ref<double>({{1, 1, 1, 0.5f, 1},
                                   q.view(),
                                   kc.view(),
                                   vc.view(),
                                   kb.view(),
                                   vb.view(),
                                   &anchor,
                                   &lo,
                                   out.view(),
                                   lse.values.data()});
  EXPECT_NEAR(out.at(0, 0), 8 / 8.0 + 16 * 3 / 8.0 - 4 * 4 / 8.0, 1e-12);
  EXPECT_NEAR(lse.at(0, 0), std::log(8.0), 1e-12);
  Matrix causal(2, 1);
  const Matrix q2(2, 1, {2, 2}), k2(2, 1, {0, ln3});
  const int cu[] = {0, 2};
  causal_attention_fwd_ref<double>(
      {{1, 1, 1, 0.5f}, q2.view(), k2.view(), vc.view(), cu, cu, 1, causal.view()});
  EXPECT_TRUE(near(causal.values, std::vector<double>{8, 8 * 0.25 + 16 * 0.75}, 1e-12, 0));
}

}  // namespace
}  // namespace slip::testing
