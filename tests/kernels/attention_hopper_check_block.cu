// Block-diffusion attention: the reference in float64, and the cases.
#include <optional>

#include "attention_hopper_check.hpp"

namespace slip::hopper_check {
namespace {

struct Reference {
  std::vector<double> out, lse, dq, dk_block, dv_block, dk, dv;
};

// The mask is written out once more here, not taken from the header.
Reference reference(const Case& x, const std::vector<double>& q, const std::vector<double>& kc,
                    const std::vector<double>& vc, const std::vector<double>& kb,
                    const std::vector<double>& vb, const std::vector<double>& dout) {
  const AttentionShape& s = x.shape;
  const int H = s.heads, K = s.kv_heads, G = H / K, D = s.head_dim, b = s.block, N = int(x.anchor.size());
  const int64_t rows = int64_t(N) * b, hd = int64_t(H) * D, kd = int64_t(K) * D;
  Reference y;
  y.out.resize(rows * hd), y.lse.resize(rows * H), y.dq.resize(rows * hd);
  y.dk_block.resize(rows * kd), y.dv_block.resize(rows * kd);
  y.dk.resize(x.context * kd), y.dv.resize(x.context * kd);
  std::vector<double> delta(rows * H);
  auto first_key = [&](int i, int j) {
    int first = x.lo[i];
    if (s.window > 0) first = std::max(first, x.anchor[i] + j - (s.window - 1));
    return std::min(first, x.anchor[i]);
  };
  parallel_for(int64_t(N) * K, [&](int64_t task) {
    const int i = int(task / K), g = int(task % K), a = x.anchor[i];
    std::vector<double> p, dp;
    for (int h = g * G; h < (g + 1) * G; ++h)
      for (int j = 0; j < b; ++j) {
        const int64_t r = int64_t(i) * b + j;
        const int first = first_key(i, j), n = a - first, own = s.causal ? j + 1 : b;
        auto key = [&](int k) {
          return k < n ? &kc[(first + k) * kd + g * D] : &kb[(int64_t(i) * b + k - n) * kd + g * D];
        };
        auto value = [&](int k) {
          return k < n ? &vc[(first + k) * kd + g * D] : &vb[(int64_t(i) * b + k - n) * kd + g * D];
        };
        p.resize(n + own), dp.resize(n + own);
        double m = -INFINITY, l = 0, d = 0;
        for (int k = 0; k < n + own; ++k)
          m = std::max(m, p[k] = dot(&q[r * hd + h * D], key(k), D) * double(s.scale));
        for (auto& v : p) l += v = std::exp(v - m);
        y.lse[r * H + h] = m + std::log(l);
        for (int k = 0; k < n + own; ++k) {
          p[k] /= l;
          add(&y.out[r * hd + h * D], value(k), p[k], D);
          dp[k] = dot(&dout[r * hd + h * D], value(k), D);
          d += p[k] * dp[k];
        }
        delta[r * H + h] = d;
        for (int k = 0; k < n + own; ++k) {
          const double ds = p[k] * (dp[k] - d) * double(s.scale);
          add(&y.dq[r * hd + h * D], key(k), ds, D);
          if (k < n) continue;
          const int64_t at = (int64_t(i) * b + k - n) * kd + g * D;
          add(&y.dk_block[at], &q[r * hd + h * D], ds, D);
          add(&y.dv_block[at], &dout[r * hd + h * D], p[k], D);
        }
      }
  });
  const int chunk = 16, chunks = (x.context + chunk - 1) / chunk;
  parallel_for(int64_t(chunks) * K, [&](int64_t task) {
    const int g = int(task % K), k0 = int(task / K) * chunk, k1 = std::min(k0 + chunk, x.context);
    for (int i = 0; i < N; ++i)
      for (int j = 0; j < b; ++j) {
        const int64_t r = int64_t(i) * b + j;
        for (int k = std::max(k0, first_key(i, j)); k < std::min(k1, x.anchor[i]); ++k)
          for (int h = g * G; h < (g + 1) * G; ++h) {
            const double *qr = &q[r * hd + h * D], *dr = &dout[r * hd + h * D];
            const double p = std::exp(dot(qr, &kc[k * kd + g * D], D) * double(s.scale) - y.lse[r * H + h]);
            add(&y.dv[k * kd + g * D], dr, p, D);
            add(&y.dk[k * kd + g * D], qr,
                p * (dot(dr, &vc[k * kd + g * D], D) - delta[r * H + h]) * double(s.scale), D);
          }
      }
  });
  return y;
}

}  // namespace

bool run_case(const Case& x, CudaStream stream) {
  bool ok = true;
  std::optional<Reference> r;
  const auto run = [&](BackwardForm form, const char* name) {
    BlockRun t(x, form);
    if (!hopper_supports(t.fwd()) || !hopper_supports(t.bwd())) {
      std::printf("FAIL %-44s not supported\n", x.name.c_str());
      ok = false;
      return;
    }
    auto go = [&] {
      t.reset();
      check(cudaDeviceSynchronize());
      block_attention_fwd_hopper(t.fwd(), stream);
      t.backward(stream);
      check(cudaStreamSynchronize(stream));
    };
    go();
    const auto out = t.out.download(), dq = t.dq.download(), dkb = t.dkb.download(), dvb = t.dvb.download();
    const auto dk = t.dk.download(), dv = t.dv.download(), lse = t.lse.download();
    if (form != BackwardForm::separate) t.leave = 1000;  // a single thread block has to get through, too
    go();
    const bool bits = same(out, t.out.download()) && same(dq, t.dq.download()) &&
                      same(dkb, t.dkb.download()) && same(dvb, t.dvb.download()) &&
                      same(dk, t.dk.download()) && same(dv, t.dv.download()) && same(lse, t.lse.download());
    if (!r)
      r = reference(x, t.q.doubles(), t.kc.doubles(), t.vc.doubles(), t.kb.doubles(), t.vb.doubles(),
                    t.dout.doubles());
    ok = report(x.name + name,
                {{"out", t.out.error(out, r->out, false)},
                 {"lse", t.lse.error(lse, r->lse, false)},
                 {"dq", t.dq.error(dq, r->dq, false)},
                 {"dkb", t.dkb.error(dkb, r->dk_block, false)},
                 {"dvb", t.dvb.error(dvb, r->dv_block, false)},
                 {"dk", t.dk.error(dk, r->dk, true)},
                 {"dv", t.dv.error(dv, r->dv, true)}},
                bits) &&
         ok;
  };
  run(BackwardForm::separate, "");
  if (hopper_supports(x.shape, BackwardForm::fused)) {
    run(BackwardForm::fused, ", fused");
    run(BackwardForm::fused_both_ways, ", fused both ways");
  }
  return ok;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  // Edges of tiles, anchors at 0 and twice the same, the last token; windows and both causalities.
  for (auto [window, causal] :
       {std::pair{0, false}, {0, true}, {100, true}, {100, false}, {40, true}, {16, false}}) {
    Case c{"edges w" + std::to_string(window) + (causal ? " causal" : ""),
           shape(8, 2, 128, 16, window, causal),
           700,
           {0, 0, 1, 127, 128, 129, 255, 256, 300, 600, 601, 699},
           std::vector<int>(12, 0)};
    all.push_back(c);
  }
  // Documents: lo == anchor (no context), a gap between neighbours, a document without a block, one of a
  // token.
  for (auto [window, causal] : {std::pair{0, false}, {64, true}}) {
    Case c{"packed by hand w" + std::to_string(window),
           shape(8, 2, 128, 16, window, causal),
           1000,
           {0, 5, 5, 130, 131, 200, 500, 501, 502, 629, 630, 631, 900, 999},
           {0, 0, 0, 130, 131, 131, 500, 500, 500, 500, 630, 630, 640, 999}};
    all.push_back(c);
  }
  all.push_back({"no context at all", shape(8, 2, 128, 16), 64, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}});
  all.push_back({"empty context", shape(8, 2, 128, 16, 0, true), 0, {0, 0, 0}, {0, 0, 0}});
  all.push_back(
      {"every document one block at its start", shape(8, 2, 128, 16), 96, {0, 32, 64}, {0, 32, 64}});
  all.push_back({"one block", shape(4, 1, 128, 16), 1000, {777}, {0}});
  all.push_back({"one block of one token before it", shape(4, 1, 128, 8), 1, {1}, {0}});
  // Blocks, groups, head dims; odd numbers of blocks, so that units and pairs have tails.
  for (int d : {64, 128})
    for (int block : {4, 8, 16, 32})
      for (int group : {1, 2, 3, 4, 6, 8}) {
        if (d == 64 && (group == 3 || group == 6)) continue;
        const int window = (block + group) % 3 == 0 ? 90 : 0;
        const bool causal = (block / 4 + group) % 2 == 0;
        Case c =
            drawn("d" + std::to_string(d) + " b" + std::to_string(block) + " group " + std::to_string(group) +
                      (window ? " w90" : "") + (causal ? " causal" : ""),
                  shape(2 * group, 2, d, block, window, causal), {150, 37, 313}, 11 + block % 3, 50 + group);
        all.push_back(c);
      }
  all.push_back(drawn("group 5", shape(5, 1, 128, 16), {333}, 9));
  all.push_back(drawn("group 7", shape(7, 1, 128, 16, 0, true), {100, 200}, 9));
  all.push_back(drawn("group 16", shape(16, 1, 128, 16), {100, 200}, 9));
  // Many short documents; more blocks than a unit can pair; dense matrices; the real heads.
  all.push_back(drawn(
      "40 documents of 1 to 79", shape(8, 2, 128, 16),
      [] {
        std::vector<int> d;
        for (int i = 0; i < 40; ++i) d.push_back(1 + i * 37 % 79);
        return d;
      }(),
      200));
  all.push_back(drawn(
      "40 documents of 1 to 79, b8", shape(8, 2, 128, 8, 20, true),
      [] {
        std::vector<int> d;
        for (int i = 0; i < 40; ++i) d.push_back(1 + i * 37 % 79);
        return d;
      }(),
      203));
  for (bool wide : {false, true}) {
    Case c = drawn(std::string("32/8 heads, 2 documents") + (wide ? "" : ", dense"), shape(32, 8, 128, 16),
                   {800, 733}, 75);
    c.wide = wide;
    all.push_back(c);
  }
  all.push_back(drawn("32/8 heads, 4096 tokens", shape(32, 8, 128, 16), {4096}, 64));
  all.push_back(
      drawn("32/8 heads, 4096 tokens, w1024 causal", shape(32, 8, 128, 16, 1024, true), {4096}, 64));
  all.push_back(drawn("64/32 heads, one document", shape(64, 32, 128, 8), {1000}, 50));
  all.push_back(drawn("64/32 heads, documents, w300", shape(64, 32, 128, 16, 300), {900, 40, 1200}, 70));
  all.push_back(drawn("many items", shape(4, 1, 64, 4), {600, 77, 423}, 1000));
  all.push_back(drawn("long, 128-key tiles", shape(2, 2, 64, 16), {20000, 16000}, 40));
  all.push_back(drawn("very long", shape(8, 8, 64, 8), {40000}, 13));
  return all;
}

}  // namespace slip::hopper_check
