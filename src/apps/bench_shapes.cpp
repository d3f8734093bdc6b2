#include "apps/bench_shapes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "core/random.hpp"

namespace slip {
namespace {

struct NamedDrafter {
  DrafterModel model;
  RowSizes row;
  int64_t rows;  // of a step
};

DrafterModel drafter_model(int64_t hidden, int64_t intermediate, int64_t heads, int64_t kv_heads,
                           int64_t head_dim, int64_t vocab, int64_t block, std::vector<int64_t> taps,
                           std::vector<bool> sliding) {
  DrafterModel m;
  m.hidden = hidden, m.intermediate = intermediate, m.heads = heads, m.kv_heads = kv_heads,
  m.head_dim = head_dim;
  m.vocab = vocab, m.block = block, m.mask_token = vocab - 1, m.layers = static_cast<int64_t>(sliding.size());
  m.taps = std::move(taps), m.sliding = sliding, m.causal = std::move(sliding);
  m.window = 2048;  // of those that slide
  m.rope.theta = 1e6;
  return m;
}

NamedDrafter named_drafter(const std::string& shape) {
  // As configs/tiny.ini and its drafter; the others as published (configs/, dflash.md 1.5).
  if (shape == "tiny") {
    return {drafter_model(128, 384, 4, 2, 64, 272, 8, {0, 2}, {false, false}), {288, 1, 16}, 4};
  }
  const RowSizes row{4096, 1, 512};
  if (shape == "qwen3-8b") {
    return {
        drafter_model(4096, 12288, 32, 8, 128, 151936, 16, {1, 9, 17, 25, 33}, std::vector<bool>(5, false)),
        row, 1};
  }
  if (shape == "qwen3.6-27b") {
    return {drafter_model(5120, 17408, 32, 8, 128, 248320, 16, {1, 16, 31, 46, 61},
                          {true, true, true, true, false}),
            row, 1};
  }
  std::error_code ignored;
  if (!std::filesystem::exists(shape, ignored)) {
    fail_usage(fmt::format("--shape: '{}' is neither one of {} nor a drafter's config.json", shape,
                           fmt::join(drafter_shapes(), ", ")));
  }
  return {read_drafter_config(shape), row, 1};
}

TargetModel target_model(const char* type, int64_t hidden, int64_t intermediate, int64_t layers,
                         int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t vocab) {
  TargetModel m;
  m.model_type = type, m.qk_norm = m.model_type == "qwen3";
  m.hidden = hidden, m.intermediate = intermediate, m.layers = layers, m.heads = heads, m.kv_heads = kv_heads;
  m.head_dim = head_dim, m.vocab = vocab, m.eps = m.qk_norm ? 1e-6f : 1e-5f, m.max_position = 1 << 17;
  m.rope.theta = 1e6;
  return m;
}

TargetModel qwen36_27b() {  // as configs/models/qwen3.6-27b
  TargetModel m = target_model("qwen3_5", 5120, 17408, 64, 24, 4, 256, 248320);
  m.eps = 1e-6f, m.rope.theta = 1e7, m.rope.partial = 0.25;
  m.qk_norm = m.centred_norms = m.attention_gate = true;
  for (int64_t l = 0; l < m.layers; ++l) m.linear.push_back(l % 4 != 3);
  m.delta = {.key_heads = 16, .value_heads = 48, .key_dim = 128, .value_dim = 128, .taps = 4};
  return m;
}

}  // namespace

std::vector<std::string> drafter_shapes() { return {"tiny", "qwen3-8b", "qwen3.6-27b"}; }
std::vector<std::string> target_shapes() { return {"tiny", "qwen3-8b", "llama-3.1-8b", "qwen3.6-27b"}; }

TargetModel bench_target_model(const std::string& shape) {
  if (shape == "tiny") return target_model("qwen3", 128, 384, 6, 4, 2, 64, 272);
  if (shape == "qwen3-8b") return target_model("qwen3", 4096, 12288, 36, 32, 8, 128, 151936);
  if (shape == "llama-3.1-8b") return target_model("llama", 4096, 14336, 32, 32, 8, 128, 128256);
  if (shape == "qwen3.6-27b") return qwen36_27b();
  std::error_code ignored;
  if (!std::filesystem::is_directory(shape, ignored)) {
    fail_usage(fmt::format("--shape: '{}' is neither one of {} nor a target's folder", shape,
                           fmt::join(target_shapes(), ", ")));
  }
  return read_target_config(shape);
}

std::vector<int64_t> bench_target_taps(const std::string& shape, const TargetModel& m) {
  if (shape == "tiny") return {0, 2};
  if (m.layers < 8) return {0, m.layers - 1};  // the default rule would name a layer twice
  return default_taps(m.layers, 5);
}

RowTokens random_row(const RowSizes& s, int64_t vocab) {
  RowTokens row;
  for (int64_t t = 0; t < s.tokens; ++t) {
    row.ids.push_back(
        static_cast<int32_t>(random_u64(1, 0, static_cast<uint64_t>(t)) % static_cast<uint64_t>(vocab)));
  }
  row.mask.assign(static_cast<size_t>(s.tokens), 1);
  for (int64_t d = 0; d < s.documents; ++d) {
    row.lengths.push_back((d + 1) * s.tokens / s.documents - d * s.tokens / s.documents);
    row.document_ids.push_back(d);
  }
  return row;
}

RowBlocks random_blocks(const RowTokens& row, const DrafterModel& m, const RowSizes& s) {
  return make_blocks(row, m, LabelMask::prefix, {std::max<int64_t>(1, s.anchors / s.documents), 1, 0});
}

StepShape make_step_shape(const BenchOptions& o, const std::string& shape) {
  const NamedDrafter named = named_drafter(shape);
  if (o.fp8) check_fp8_sizes(named.model, "--precision fp8");
  const auto choose = [](int64_t asked, int64_t own) { return asked > 0 ? asked : own; };
  const RowSizes sizes{choose(o.tokens, named.row.tokens), choose(o.documents, named.row.documents),
                       choose(o.anchors, named.row.anchors)};
  if (sizes.tokens / sizes.documents < 2)
    fail_usage("--documents: a document would have fewer than 2 tokens");
  StepShape s{.name = shape, .model = named.model, .rows = choose(o.rows, named.rows)};
  s.row = random_row(sizes, s.model.vocab);
  s.blocks = random_blocks(s.row, s.model, sizes);
  const int64_t all = s.blocks.count(), per_pass = std::min(all, choose(o.blocks_per_pass, all));
  s.limits = {sizes.tokens, per_pass,
              *std::max_element(s.row.lengths.begin(), s.row.lengths.end()) + s.model.block, o.fp8,
              o.fp8 && fp8_suits_head(s.model)};
  for (int64_t first = 0; first < all; first += per_pass) {
    const int64_t count = std::min(per_pass, all - first);
    s.passes.push_back({first, count, count * s.model.block});
  }
  return s;
}

AttentionShape drafter_attention(const DrafterModel& m, int64_t window, bool causal) {
  const int d = static_cast<int>(m.head_dim);
  return {.heads = static_cast<int>(m.heads),
          .kv_heads = static_cast<int>(m.kv_heads),
          .head_dim = d,
          .scale = attention_scale(d),
          .block = static_cast<int>(m.block),
          .window = static_cast<int>(window),
          .causal = causal};
}

double live_pairs(const AttentionShape& s, const RowBlocks& b, int64_t first, int64_t count) {
  double pairs = 0;
  for (int64_t i = first; i < first + count; ++i) {
    const int lo = b.lo[static_cast<size_t>(i)], anchor = b.anchor[static_cast<size_t>(i)];
    for (int j = 0; j < s.block; ++j) {
      pairs += anchor - first_context(s, lo, anchor, j) + (s.causal ? j + 1 : s.block);
    }
  }
  return pairs;
}

}  // namespace slip
