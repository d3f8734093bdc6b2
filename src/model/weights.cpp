#include "model/weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/log.hpp"
#include "core/random.hpp"

namespace slip {

std::string embedding_name(const WeightFolder& folder) {
  const std::string plain = "model.embed_tokens.weight", nested = "model.language_model.embed_tokens.weight";
  if (folder.find(plain) != nullptr) return plain;
  if (folder.find(nested) != nullptr) {
    if (layer_prefix(folder) == "model.")  // not the wrapper of the whole language model
      log_info(fmt::format("{}: the embedding is {}", folder.folder(), nested));
    return nested;
  }
  return plain;  // WeightFolder::need says what is there instead
}

std::string layer_prefix(const WeightFolder& folder) {
  const std::string nested = "model.language_model.";
  return folder.find(nested + "layers.0.input_layernorm.weight") != nullptr ? nested : "model.";
}

template <class T> void WeightReader<T>::place(const TensorInfo& info, int64_t first, int64_t count, T* to) {
  const int64_t size = sizeof(T);
  if (info.dtype == (std::is_same_v<T, Bf16> ? Dtype::bf16 : Dtype::f32)) {
    pieces_.push_back({&info, first * size, count * size, to});
    return;
  }
  if (hooks_.spread != nullptr) placed_.push_back({&info, first * size, count * size, to});
  if (hooks_.spread != nullptr && !hooks_.spread->reads) return;
  if (converted_ != &info) {
    synchronize(queue_);  // copies may still read what was converted before
    host_.resize(static_cast<size_t>(info.count()));
    if constexpr (std::is_same_v<T, Bf16>) {
      folder_.read_bf16(info, host_.data());
    } else {
      folder_.read_float(info, host_.data());
    }
    converted_ = &info;
    if (hooks_.progress) hooks_.progress();
  }
  copy_to_device(to, host_.data() + first, count * size, queue_);
}

template <class T> void WeightReader<T>::read(const std::string& name, View2<T> to) {
  const TensorInfo& info = *folder_.find(name);
  require(to.stride == to.cols && info.count() == to.rows * to.cols,
          "WeightReader: the tensor does not fit its place");
  if (!dry_) place(info, 0, info.count(), to.data);
}

template <class T>
void WeightReader<T>::read_halves(const std::string& name, int64_t rows, View2<T> first, View2<T> second) {
  const TensorInfo& info = *folder_.find(name);
  require(first.stride == first.cols && second.stride == second.cols && first.rows == second.rows &&
              first.cols == second.cols && first.rows % rows == 0 &&
              info.count() == 2 * first.rows * first.cols,
          "WeightReader: the tensor does not fit its two places");
  if (dry_) return;
  const int64_t block = rows * first.cols;
  int64_t from = 0;
  for (int64_t row = 0; row < first.rows; row += rows) {
    for (const View2<T>& to : {first, second}) {
      place(info, from, block, to.row(row));
      from += block;
    }
  }
}

template <class T> void WeightReader<T>::finish() {
  if (dry_) return;
  stream_weights(folder_, std::move(pieces_), queue_, hooks_);
  pieces_.clear();
  synchronize(queue_);
  for (const WeightPiece& p : placed_) {
    hooks_.spread->pass(p.to, p.bytes);
    if (hooks_.progress) hooks_.progress();
  }
  if (!placed_.empty()) hooks_.spread->finish();
  placed_.clear();
}
template class WeightReader<float>;
#if SLIP_HAVE_CUDA
template class WeightReader<Bf16>;
#endif

const ParameterLayout::Entry& ParameterLayout::at(const std::string& name) const {
  const auto it =
      std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.name == name; });
  if (it == entries.end()) fail("no drafter tensor is called " + name);
  return *it;
}

ParameterLayout parameter_layout(const DrafterModel& m) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const NamedShape& t : drafter_tensors(m)) shapes[t.name] = t.shape;
  ParameterLayout layout;
  const auto place = [&](const std::string& name) {
    const std::vector<int64_t>& shape = shapes.at(name);
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    layout.entries.push_back({name, shape, layout.count, count});
    layout.count += count;
  };
  const auto layer = [&](int64_t l, const char* rest) { place("layers." + std::to_string(l) + "." + rest); };
  place("fc.weight");
  place("hidden_norm.weight");
  place("norm.weight");
  for (int64_t l = 0; l < m.layers; ++l) layer(l, "self_attn.k_norm.weight");
  for (int64_t l = 0; l < m.layers; ++l) {
    layer(l, "self_attn.k_proj.weight");
    layer(l, "self_attn.v_proj.weight");
  }
  for (int64_t l = 0; l < m.layers; ++l) {
    layer(l, "input_layernorm.weight");
    layer(l, "self_attn.q_norm.weight");
    layer(l, "self_attn.q_proj.weight");
    layer(l, "self_attn.o_proj.weight");
    layer(l, "post_attention_layernorm.weight");
    layer(l, "mlp.gate_proj.weight");
    layer(l, "mlp.up_proj.weight");
    layer(l, "mlp.down_proj.weight");
  }
  require(layout.entries.size() == shapes.size(), "parameter_layout: a published tensor has no place");
  return layout;
}

template <class T>
DrafterViews<T> drafter_views(const DrafterModel& m, const ParameterLayout& layout, T* flat) {
  const auto at = [&](const std::string& name) { return flat + layout.at(name).offset; };
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim, h = m.hidden;
  DrafterViews<T> v;
  v.fc = {at("fc.weight"), h, static_cast<int64_t>(m.taps.size()) * h};
  v.hidden_norm = at("hidden_norm.weight");
  v.norm = at("norm.weight");
  v.kv_all = {at("layers.0.self_attn.k_proj.weight"), m.layers * 2 * kv, h};
  for (int64_t l = 0; l < m.layers; ++l) {
    const auto n = [&](const char* rest) { return at("layers." + std::to_string(l) + "." + rest); };
    v.layers.push_back({.input_norm = n("input_layernorm.weight"),
                        .q_norm = n("self_attn.q_norm.weight"),
                        .k_norm = n("self_attn.k_norm.weight"),
                        .post_norm = n("post_attention_layernorm.weight"),
                        .q = {n("self_attn.q_proj.weight"), q, h},
                        .kv = v.kv_all.rows_from(l * 2 * kv, 2 * kv),
                        .o = {n("self_attn.o_proj.weight"), h, q},
                        .gate_up = {n("mlp.gate_proj.weight"), 2 * m.intermediate, h},
                        .down = {n("mlp.down_proj.weight"), h, m.intermediate}});
  }
  return v;
}
template DrafterViews<float> drafter_views(const DrafterModel&, const ParameterLayout&, float*);
template DrafterViews<double> drafter_views(const DrafterModel&, const ParameterLayout&, double*);
template DrafterViews<Bf16> drafter_views(const DrafterModel&, const ParameterLayout&, Bf16*);

std::vector<float> initial_parameters(const DrafterModel& m, const ParameterLayout& layout, uint64_t seed) {
  std::vector<float> out(static_cast<size_t>(layout.count));
  for (const ParameterLayout::Entry& e : layout.entries) {
    float* to = out.data() + e.offset;
    const uint64_t name = fnv1a64(e.name);
    const float scale = static_cast<float>(m.initializer_range);
    for (int64_t i = 0; i < e.count; ++i) {
      to[i] = e.shape.size() == 1 ? 1.0f
                                  : round_bf16(scale * random_normal(seed, name, static_cast<uint64_t>(i)));
    }
  }
  return out;
}

const TensorInfo& need_published(const WeightFolder& weights, const std::string& name,
                                 const std::vector<int64_t>& shape) {
  static const std::map<std::string, std::string> kTorchSpec = {{"fc.weight", "context_proj.weight"},
                                                                {"hidden_norm.weight", "context_norm.weight"},
                                                                {"norm.weight", "final_norm.weight"}};
  const auto other = kTorchSpec.find(name);
  for (const std::string& n : {name, other == kTorchSpec.end() ? name : other->second}) {
    for (const char* prefix : {"", "model."})
      if (weights.find(prefix + n) != nullptr) return weights.need(prefix + n, shape);
  }
  return weights.need(name, shape);
}

void check_published(const DrafterModel& m, const std::string& folder) {
  const WeightFolder weights(folder);
  for (const NamedShape& t : drafter_tensors(m)) need_published(weights, t.name, t.shape);
}

std::vector<float> published_parameters(const ParameterLayout& layout, const std::string& folder) {
  const WeightFolder weights(folder);
  for (const ParameterLayout::Entry& e : layout.entries) need_published(weights, e.name, e.shape);
  std::vector<float> out(static_cast<size_t>(layout.count));
  for (const ParameterLayout::Entry& e : layout.entries) {
    weights.read_float(need_published(weights, e.name, e.shape), out.data() + e.offset);
  }
  return out;
}

}  // namespace slip
