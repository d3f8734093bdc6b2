// `step`: one training step on given weights, features, tokens and anchors, for comparing with another
// trainer. The file's layout is described in tests/golden/README.md.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "apps/commands.hpp"
#include "apps/step_case.hpp"
#include "apps/with_queue.hpp"
#include "core/log.hpp"
#include "io/safetensors.hpp"
#include "train/step.hpp"

namespace slip {
namespace {

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

template <class T> Result compute(const StepCase& c, const Queue& queue) {
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
  set_weights(d, c.weights, queue);
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
  const StepCase c = read_step_case(file);
  const ParameterLayout layout = parameter_layout(c.model);
  const Result r =
      with_queue(device, bf16, [&]<class T>(const Queue& queue) { return compute<T>(c, queue); });
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
