// Causal attention: the reference in float64.
#include "attention_hopper_check.hpp"

namespace slip::hopper_check {

bool run_causal(const std::string& name, const AttentionShape& s, const std::vector<int>& lengths,
                CudaStream stream) {
  CausalRun t(s, lengths, true);
  if (!hopper_supports(t.args())) {
    std::printf("FAIL %-44s not supported\n", name.c_str());
    return false;
  }
  auto go = [&] {
    t.out.upload();
    check(cudaDeviceSynchronize());
    causal_attention_fwd_hopper(t.args(), stream);
    check(cudaStreamSynchronize(stream));
    return t.out.download();
  };
  const auto out = go();
  const bool bits = same(out, go());
  const auto q = t.q.doubles(), k = t.k.doubles(), v = t.v.doubles();
  const int H = s.heads, K = s.kv_heads, D = s.head_dim;
  std::vector<double> want(t.tokens * H * D);
  std::vector<int> start(t.tokens);
  for (size_t i = 0; i + 1 < t.cu.size(); ++i)
    std::fill(start.begin() + t.cu[i], start.begin() + t.cu[i + 1], t.cu[i]);
  parallel_for(t.tokens, [&](int64_t i) {
    std::vector<double> p(i + 1 - start[i]);
    for (int h = 0; h < H; ++h) {
      const int64_t g = h / (H / K);
      double m = -INFINITY, l = 0;
      for (size_t n = 0; n < p.size(); ++n)
        m = std::max(m,
                     p[n] = dot(&q[(i * H + h) * D], &k[((start[i] + n) * K + g) * D], D) * double(s.scale));
      for (auto& x : p) l += x = std::exp(x - m);
      for (size_t n = 0; n < p.size(); ++n)
        add(&want[(i * H + h) * D], &v[((start[i] + n) * K + g) * D], p[n] / l, D);
    }
  });
  return report(name, {{"out", t.out.error(out, want, false)}}, bits);
}

}  // namespace slip::hopper_check
