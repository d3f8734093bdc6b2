// `step`: one training step on given weights, features, tokens and anchors, for comparing with another
// trainer. The file's layout is described in tests/golden/README.md.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "apps/commands.hpp"
#include "apps/with_queue.hpp"
#include "core/log.hpp"
#include "io/json_file.hpp"
#include "io/safetensors.hpp"
#include "train/step.hpp"

namespace slip {
namespace {

struct Case {
  DrafterModel model;
  LossRule rule;
  LabelMask label_mask;
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  std::vector<int> anchors;  // as the file lists them
  std::vector<float> features, embed, head;
};

const TensorInfo& tensor(const SafetensorsFile& f, const std::string& name, Dtype dtype,
                         const std::vector<int64_t>& shape) {
  const TensorInfo* t = f.find(name);
  if (t == nullptr) fail_input(fmt::format("{}: no tensor {}", f.path(), name));
  if (t->dtype != dtype)
    fail_input(fmt::format("{}: {} is {}, want {}", f.path(), name, t->dtype_text, dtype_name(dtype)));
  if (t->shape != shape)
    fail_input(fmt::format("{}: {} is {}, the case says {}", f.path(), name, shape_text(t->shape),
                           shape_text(shape)));
  return *t;
}

template <class T>
std::vector<T> values(const SafetensorsFile& f, const std::string& name, Dtype dtype,
                      const std::vector<int64_t>& shape) {
  const TensorInfo& t = tensor(f, name, dtype, shape);
  std::vector<T> out(static_cast<size_t>(t.count()));
  f.read(t, out.data());
  return out;
}

std::vector<float> bf16_values(const SafetensorsFile& f, const std::string& name,
                               const std::vector<int64_t>& shape) {
  const std::vector<Bf16> bits = values<Bf16>(f, name, Dtype::bf16, shape);
  std::vector<float> out(bits.size());
  std::transform(bits.begin(), bits.end(), out.begin(), [](Bf16 b) { return to_float(b); });
  return out;
}

// A key that the case leaves out, or gives as null, has its default.
template <class V> V value_or(const nlohmann::json& j, const char* key, V otherwise) {
  const auto at = j.find(key);
  return at == j.end() || at->is_null() ? otherwise : at->get<V>();
}

Case read_case(const SafetensorsFile& f) {
  const auto text = f.metadata().find("case");
  if (text == f.metadata().end()) fail_input(fmt::format("{}: __metadata__ has no `case`", f.path()));
  Case c;
  DrafterModel& m = c.model;
  int64_t tokens = 0;
  try {
    const nlohmann::json j = nlohmann::json::parse(text->second);
    tokens = j.at("S").get<int64_t>();
    m.block = j.at("block_size").get<int64_t>();
    m.layers = j.at("num_hidden_layers").get<int64_t>();
    m.taps = j.at("target_layer_ids").get<std::vector<int64_t>>();
    m.heads = j.at("num_attention_heads").get<int64_t>();
    m.kv_heads = j.at("num_key_value_heads").get<int64_t>();
    m.head_dim = j.at("head_dim").get<int64_t>();
    m.intermediate = j.at("intermediate_size").get<int64_t>();
    m.hidden = j.at("hidden_size").get<int64_t>();
    m.vocab = j.at("vocab_size").get<int64_t>();
    m.mask_token = j.at("mask_token_id").get<int64_t>();
    m.rope.theta = j.at("rope_theta").get<double>();
    m.eps = value_or(j, "rms_norm_eps", 1e-6f);
    m.window = value_or<int64_t>(j, "sliding_window", 0);
    for (const std::string& kind : j.at("layer_types").get<std::vector<std::string>>()) {
      const bool sliding = kind == "sliding_attention";
      if (!sliding && kind != "full_attention")
        fail_input(fmt::format("{}: layer_types: '{}' is neither full_attention nor sliding_attention",
                               f.path(), kind));
      m.sliding.push_back(sliding);
      m.causal.push_back(value_or(j, "is_causal", sliding));
    }
    const std::string loss = j.at("loss_type").get<std::string>();
    if (loss != "dflash" && loss != "dpace")
      fail_input(fmt::format("{}: loss_type: '{}' is neither dflash nor dpace", f.path(), loss));
    c.rule.kind = loss == "dpace" ? LossKind::dpace : LossKind::decay;
    c.rule.gamma = value_or(j, "loss_decay_gamma", 0.0f);
    c.rule.alpha = value_or(j, "dpace_alpha", 0.5f);
    const std::string mask = j.at("label_mask").get<std::string>();
    if (mask != "prefix" && mask != "pointwise")
      fail_input(fmt::format("{}: label_mask: '{}' is neither prefix nor pointwise", f.path(), mask));
    c.label_mask = mask == "prefix" ? LabelMask::prefix : LabelMask::pointwise;
  } catch (const nlohmann::json::exception& e) {
    fail_input(fmt::format("{}: __metadata__.case: {}", f.path(), json_complaint(e)));
  }
  const auto positive = [&](const char* key, int64_t v) {
    if (v < 1) fail_input(fmt::format("{}: case: {} is {}", f.path(), key, v));
  };
  positive("S", tokens), positive("block_size", m.block), positive("num_hidden_layers", m.layers),
      positive("head_dim", m.head_dim);
  positive("num_key_value_heads", m.kv_heads), positive("num_attention_heads", m.heads),
      positive("hidden_size", m.hidden);
  positive("intermediate_size", m.intermediate), positive("vocab_size", m.vocab),
      positive("taps", static_cast<int64_t>(m.taps.size()));
  if (m.heads % m.kv_heads != 0)
    fail_input(fmt::format("{}: case: {} heads are no multiple of {} key/value heads", f.path(), m.heads,
                           m.kv_heads));
  if (m.block > kMaxBlock)
    fail_input(fmt::format("{}: case: block_size {} is above {}", f.path(), m.block, kMaxBlock));
  if (static_cast<int64_t>(m.sliding.size()) != m.layers)
    fail_input(fmt::format("{}: case: {} layer_types for {} layers", f.path(), m.sliding.size(), m.layers));
  if (m.mask_token < 0 || m.mask_token >= m.vocab)
    fail_input(
        fmt::format("{}: case: mask_token_id {} is outside 0..{}", f.path(), m.mask_token, m.vocab - 1));
  const bool any_sliding = std::find(m.sliding.begin(), m.sliding.end(), true) != m.sliding.end();
  if (any_sliding && m.window < m.block)
    fail_input(
        fmt::format("{}: case: sliding_window {} is below block_size {}", f.path(), m.window, m.block));
  const TensorInfo* anchors = f.find("in.anchors");
  if (anchors == nullptr || anchors->shape.size() != 1)
    fail_input(fmt::format("{}: no vector in.anchors", f.path()));
  c.ids = values<int32_t>(f, "in.input_ids", Dtype::i32, {tokens});
  c.mask = values<uint8_t>(f, "in.loss_mask", Dtype::u8, {tokens});
  c.anchors = values<int32_t>(f, "in.anchors", Dtype::i32, anchors->shape);
  c.features =
      values<float>(f, "in.features", Dtype::f32, {tokens, static_cast<int64_t>(m.taps.size()) * m.hidden});
  c.embed = bf16_values(f, "in.embed_tokens.weight", {m.vocab, m.hidden});
  c.head = bf16_values(f, "in.lm_head.weight", {m.vocab, m.hidden});
  for (size_t t = 0; t < c.ids.size(); ++t) {
    if (c.ids[t] < 0 || c.ids[t] >= m.vocab)
      fail_input(
          fmt::format("{}: in.input_ids[{}] is {}, outside 0..{}", f.path(), t, c.ids[t], m.vocab - 1));
  }
  for (const int a : c.anchors) {
    if (a < 0 || a >= tokens)
      fail_input(fmt::format("{}: in.anchors: {} is outside 0..{}", f.path(), a, tokens - 1));
  }
  return c;
}

struct Result {
  float loss, accuracy;
  std::vector<float> hidden;  // (N*b, H) in the order of the file's anchors
  std::vector<float> grads;   // flat
};

template <class T> void upload(const View2<T>& to, const std::vector<float>& from, const Queue& queue) {
  std::vector<T> typed(from.size());
  std::transform(from.begin(), from.end(), typed.begin(), [](float x) { return from_float<T>(x); });
  copy_to_device(to.data, typed.data(), static_cast<int64_t>(typed.size() * sizeof(T)), queue);
  synchronize(queue);
}

template <class T> Result compute(const Case& c, const std::vector<float>& weights, const Queue& queue) {
  const DrafterModel& m = c.model;
  const int64_t tokens = static_cast<int64_t>(c.ids.size()), blocks = static_cast<int64_t>(c.anchors.size());
  Arena arena(queue.device);
  Drafter<T> d = make_drafter<T>(m, {tokens, std::max<int64_t>(blocks, 1), tokens + m.block}, arena, queue);
  PassBuffers<T> pass = make_pass_buffers<T>(m, d.limits, arena);
  const View2<T> embed = arena.take2<T>("embed", m.vocab, m.hidden),
                 head = arena.take2<T>("head", m.vocab, m.hidden);
  PackedRow row("row", tokens, arena);
  upload(embed, c.embed, queue);
  upload(head, c.head, queue);
  set_weights(d, weights, queue);
  upload(d.context.x, c.features, queue);
  const int64_t lengths[] = {tokens};
  const Packed packed = row.set(c.ids, lengths, queue);

  std::vector<size_t> order(c.anchors.size());  // kernels want ascending anchors
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return c.anchors[a] < c.anchors[b]; });
  std::vector<int> sorted;
  for (const size_t i : order) sorted.push_back(c.anchors[i]);
  RowBlocks in;
  add_document(in, m, c.label_mask, c.ids, c.mask, sorted, 0);
  std::vector<T> hidden;
  StepSums sums =
      run_blocks<T>(d, pass, packed.position, in, embed, head, c.rule, RowMode::train, queue, &hidden);

  // decay divides by the sum of the weights; the golden dpace rule by the number of sequences, which is one.
  const double denominator = c.rule.kind == LossKind::decay ? sums.weight : 1.0;
  Result r;
  r.loss = static_cast<float>(denominator > 0 ? sums.loss / denominator : 0);
  r.accuracy = static_cast<float>(sums.accuracy());
  const size_t block_values = static_cast<size_t>(m.block * m.hidden);
  r.hidden.resize(hidden.size());
  for (size_t i = 0; i < order.size(); ++i) {
    std::transform(hidden.begin() + static_cast<int64_t>(i * block_values),
                   hidden.begin() + static_cast<int64_t>((i + 1) * block_values),
                   r.hidden.begin() + static_cast<int64_t>(order[i] * block_values),
                   [](T x) { return static_cast<float>(to_float(x)); });
  }
  std::vector<Acc<T>> grads(static_cast<size_t>(d.layout.count));
  copy_to_host(grads.data(), d.grads, d.layout.count * static_cast<int64_t>(sizeof(Acc<T>)), queue);
  synchronize(queue);
  for (const Acc<T> g : grads)
    r.grads.push_back(denominator > 0 ? static_cast<float>(static_cast<double>(g) / denominator) : 0.0f);
  return r;
}

}  // namespace

int run_step(const Arguments& arguments) {
  std::string path, out, precision = "fp32", device_text = "auto";
  Options options("step", "--case FILE.safetensors --out FILE.safetensors",
                  "One training step (forward, loss, backward) on the weights, features, tokens and anchors "
                  "of a case file. Writes out.loss,\n"
                  "out.accuracy, out.draft_hidden [blocks*block, H] and g.<published name>, all F32.");
  options.need("case", &path, "case file (layout: tests/golden/README.md)")
      .need("out", &out, "safetensors file to write")
      .text("precision", &precision, "fp32 or bf16 (bf16 needs a GPU)")
      .text("device", &device_text, "auto, cpu or cuda");
  if (!options.parse(arguments)) return kOk;
  const Device device = choose_device_kind(device_text);
  const bool bf16 = bf16_asked(precision, device);
  const SafetensorsFile file(path);
  const Case c = read_case(file);
  const ParameterLayout layout = parameter_layout(c.model);
  std::vector<float> weights(static_cast<size_t>(layout.count));
  for (const ParameterLayout::Entry& e : layout.entries) {
    const std::vector<float> w = bf16_values(file, "w." + e.name, e.shape);
    std::copy(w.begin(), w.end(), weights.begin() + e.offset);
  }
  const Result r =
      with_queue(device, bf16, [&]<class T>(const Queue& queue) { return compute<T>(c, weights, queue); });
  const int64_t rows = static_cast<int64_t>(c.anchors.size()) * c.model.block;
  std::vector<TensorToWrite> tensors = {
      {"out.loss", Dtype::f32, {1}, &r.loss},
      {"out.accuracy", Dtype::f32, {1}, &r.accuracy},
      {"out.draft_hidden", Dtype::f32, {rows, c.model.hidden}, r.hidden.data()}};
  for (const ParameterLayout::Entry& e : layout.entries)
    tensors.push_back({"g." + e.name, Dtype::f32, e.shape, r.grads.data() + e.offset});
  const std::string partial = out + ".partial";
  write_safetensors(partial, tensors);
  std::filesystem::rename(partial, out);
  log_info(
      fmt::format("{}: loss {:.6f}, accuracy {:.4f}, {} blocks", out, r.loss, r.accuracy, c.anchors.size()));
  return kOk;
}

}  // namespace slip
