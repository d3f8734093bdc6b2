// What the kernels take: JSON lines, one for each shape.
#include "attention_hopper_check.hpp"

namespace slip::hopper_check {
namespace {

struct Bench {
  cudaEvent_t begin, end;
  void* flush = nullptr;
  static constexpr size_t kFlush = 256 << 20;
  std::string device;
  Bench() {
    check(cudaEventCreate(&begin)), check(cudaEventCreate(&end));
    check(cudaMalloc(&flush, kFlush));
    cudaDeviceProp p;
    check(cudaGetDeviceProperties(&p, 0));
    device = p.name;
  }
  double median_ms(CudaStream stream, const std::function<void()>& go) {
    for (int i = 0; i < 5; ++i) go();
    std::vector<float> ms;
    for (int i = 0; i < 31; ++i) {
      check(cudaMemsetAsync(flush, i, kFlush, stream));
      check(cudaEventRecord(begin, stream));
      go();
      check(cudaEventRecord(end, stream));
      check(cudaEventSynchronize(end));
      ms.push_back(0);
      check(cudaEventElapsedTime(&ms.back(), begin, end));
    }
    std::sort(ms.begin(), ms.end());
    return ms[ms.size() / 2];
  }
};

double live_pairs(const Case& c) {
  double n = 0;
  for (size_t i = 0; i < c.anchor.size(); ++i)
    for (int j = 0; j < c.shape.block; ++j) {
      int first = c.lo[i];
      if (c.shape.window > 0) first = std::max(first, c.anchor[i] + j - c.shape.window + 1);
      n += std::max(0, c.anchor[i] - first) + (c.shape.causal ? j + 1 : c.shape.block);
    }
  return n;
}

}  // namespace

void bench(CudaStream stream, const std::string& only) {
  Bench b;
  struct Row {
    const char* name;
    std::vector<int> documents;
    int window;
    bool causal;
    double goal_fwd, goal_bwd;
  };
  const std::vector<Row> rows{
      {"S=4096", {4096}, 0, false, 0.41, 1.45},
      {"S=3072", {3072}, 0, false, 0, 0},
      {"S=4096 window 2048", {4096}, 2048, true, 0.749 / 2.3, 3.29 / 2.3},
      {"S=8192", {8192}, 0, false, 0, 0},
      {"S=16384", {16384}, 0, false, 1.45, 5.0},
      {"S=16384 window 2048", {16384}, 2048, true, 1.18 / 2.3, 4.19 / 2.3},
      {"S=2048", {2048}, 0, false, 0, 0},  // as many pairs as the two documents below
      {"2 documents of 2048", {2048, 2048}, 0, false, 0, 0},
      {"S=1024", {1024}, 0, false, 0, 0},  // and as these four
      {"4 documents of 1024", {1024, 1024, 1024, 1024}, 0, false, 0, 0},
      {"8 documents of 512", std::vector<int>(8, 512), 0, false, 0, 0},
      {"documents 3000 500 120 400 76", {3000, 500, 120, 400, 76}, 0, false, 0, 0},
      {"16384 tokens: 3000 500 4096 120 1500 2500 900 3768",
       {3000, 500, 4096, 120, 1500, 2500, 900, 3768},
       0,
       false,
       0,
       0},
  };
  double per_pair_fwd = 0, per_pair_bwd = 0;  // of the first row
  for (const Row& r : rows) {
    if (&r != &rows.front() && std::string(r.name).find(only) == std::string::npos) continue;
    Case c = drawn(r.name, shape(32, 8, 128, 16, r.window, r.causal), r.documents, 512, 11);
    c.wide = false;
    const double pairs = live_pairs(c), flop = 4.0 * 32 * 128 * pairs;
    BlockRun t(c);
    t.reset();
    const double fwd = b.median_ms(stream, [&] { block_attention_fwd_hopper(t.fwd(), stream); });
    const double bwd = b.median_ms(stream, [&] { t.backward(stream); });
    if (per_pair_fwd == 0) per_pair_fwd = fwd / pairs, per_pair_bwd = bwd / pairs;
    auto line = [&](const char* op, double ms, double flops, double goal, double per_pair) {
      std::printf(
          "{\"op\": \"%s\", \"impl\": \"hopper\", \"device\": \"%s\", \"shape\": \"%s\", \"heads\": "
          "\"32/8\", "
          "\"head_dim\": 128, \"anchors\": 512, \"block\": 16, \"pairs\": %.0f, \"ms\": %.4f, \"tflops\": "
          "%.1f, "
          "\"goal_ms\": %.3f, \"time_per_pair_against_full\": %.3f}\n",
          op, b.device.c_str(), r.name, pairs, ms, flops / ms * 1e-9, goal, ms / pairs / per_pair);
      std::fflush(stdout);
    };
    line("block_attention_fwd", fwd, flop, r.goal_fwd, per_pair_fwd);
    line("block_attention_bwd", bwd, 2.5 * flop, r.goal_bwd, per_pair_bwd);
  }
  for (int d : {128, 256}) {
    const std::vector<std::pair<const char*, std::vector<int>>> lists{
        {"4 x 4096", std::vector<int>(4, 4096)},
        {"1 x 4096", {4096}},
        {"1 x 16384", {16384}},
        {"3000 500 4096 120 1500 2500 900 3768", {3000, 500, 4096, 120, 1500, 2500, 900, 3768}}};
    for (auto& [name, lengths] : lists) {
      if (std::string(name).find(only) == std::string::npos) continue;
      const AttentionShape s = d == 128 ? shape(32, 8, 128, 0) : shape(24, 4, 256, 0);
      CausalRun t(s, lengths, false);
      t.out.upload();
      double pairs = 0;
      for (int n : lengths) pairs += 0.5 * n * (n + 1.0);
      const double ms = b.median_ms(stream, [&] { causal_attention_fwd_hopper(t.args(), stream); });
      std::printf(
          "{\"op\": \"causal_attention_fwd\", \"impl\": \"hopper\", \"device\": \"%s\", \"shape\": \"%s\", "
          "\"heads\": "
          "\"%d/%d\", \"head_dim\": %d, \"pairs\": %.0f, \"ms\": %.4f, \"tflops\": %.1f}\n",
          b.device.c_str(), name, s.heads, s.kv_heads, d, pairs, ms, 4.0 * s.heads * d * pairs / ms * 1e-9);
      std::fflush(stdout);
    }
  }
}

}  // namespace slip::hopper_check
