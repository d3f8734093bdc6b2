// The models that `bench` knows by name, and one row of training as its kernels meet it.
#pragma once
#include "apps/bench.hpp"
#include "kernels/attention.hpp"
#include "kernels/matmul.hpp"
#include "model/drafter.hpp"
#include "train/blocks.hpp"

namespace slip {

std::vector<std::string> drafter_shapes();
std::vector<std::string> target_shapes();
TargetModel bench_target_model(const std::string& shape);  // a name, or a folder with a config.json
std::vector<int64_t> bench_target_taps(const std::string& shape, const TargetModel&);

// A part of a row's blocks, trained together.
struct Pass {
  int64_t first, count;  // blocks
  int64_t rows;          // count * block
};

struct StepShape {
  std::string name;
  DrafterModel model;
  int64_t rows = 1;  // of a step, all alike
  RowTokens row;     // random tokens, all supervised
  RowBlocks blocks;
  DrafterLimits limits;
  std::vector<Pass> passes;
  int64_t tokens() const { return static_cast<int64_t>(row.ids.size()); }
  int64_t context() const { return blocks.context(); }
};
// `shape`: a name, or a drafter's config.json. The options change its row.
StepShape make_step_shape(const BenchOptions&, const std::string& shape);

// `documents` of equal length with `anchors` in all, drawn as training draws them.
struct RowSizes {
  int64_t tokens, documents, anchors;
};
RowTokens random_row(const RowSizes&, int64_t vocab);
RowBlocks random_blocks(const RowTokens&, const DrafterModel&, const RowSizes&);

AttentionShape drafter_attention(const DrafterModel&, int64_t window, bool causal);
// Query-key pairs of one head that the blocks [first, first + count) see.
double live_pairs(const AttentionShape&, const RowBlocks&, int64_t first, int64_t count);
// 2 products of 2 d a pair and head forward, 5 backward (dflash.md 9).
inline double attention_flops(const AttentionShape& s, double pairs, bool backward) {
  return pairs * s.heads * s.head_dim * (backward ? 10 : 4);
}

// Every matrix product of a step, in order; the model's own calls are in src/model and kernels/head_loss_*.
struct StepProduct {
  std::string name;
  Product form;
  int64_t m, n, k;
  bool weight_gradient = false;  // into the fp32 gradients
  bool accumulate = false;
  bool head = false;  // inside head_loss
  bool fp8 = false;
  int64_t times = 1;  // a step
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};
std::vector<StepProduct> step_products(const StepShape&, int64_t chunk_rows);
std::vector<StepProduct> target_products(const TargetModel&, int64_t layers, int64_t tokens);
double total_flops(const std::vector<StepProduct>&);
// The whole list back to back, on operands that it takes from the arena.
template <class T>
std::function<void()> products_alone(const std::vector<StepProduct>&, Arena&, const Queue&);

}  // namespace slip
