// `features`: the target's residual stream after chosen layers for all tokens of a token shard, as float32.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "apps/commands.hpp"
#include "apps/with_queue.hpp"
#include "core/log.hpp"
#include "io/tokens.hpp"
#include "kernels/features.hpp"
#include "model/target.hpp"

namespace slip {
namespace {

std::vector<int64_t> parse_taps(const std::string& text, int64_t layers) {
  std::vector<int64_t> taps;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    int64_t tap = -1;
    const char* end = text.data() + comma;
    const auto [p, error] = std::from_chars(text.data() + at, end, tap);
    if (error != std::errc() || p != end)
      fail_usage(fmt::format("--taps {}: want layer numbers separated by commas", text));
    if (tap < 0 || tap >= layers)
      fail_usage(fmt::format("--taps: {} is outside the target's layers 0..{}", tap, layers - 1));
    if (std::find(taps.begin(), taps.end(), tap) != taps.end())
      fail_usage(fmt::format("--taps: {} occurs twice", tap));
    taps.push_back(tap);
    at = comma + 1;
  }
  return taps;
}

struct Documents {
  std::vector<int32_t> ids;  // all tokens
  std::vector<int64_t> lengths;
};

Documents read_all(const std::string& tokens, const TargetModel& model) {
  const TokenCorpus corpus(expand_globs(tokens), INT64_MAX);
  corpus.validate(model.vocab);
  Documents out;
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  int64_t documents = 0;
  for (const TokenShardInfo& s : corpus.shards()) documents += s.documents;
  for (int64_t d = 0; d < documents; ++d) {
    corpus.read(d, ids, mask);
    const int64_t n = static_cast<int64_t>(ids.size());
    if (n > model.max_position) {
      fail_input(fmt::format("{}: document {} has {} tokens, the target takes {} (max_position_embeddings)",
                             tokens, d, n, model.max_position));
    }
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.lengths.push_back(n);
  }
  return out;
}

// Forwards the documents in packs of at most `pack` tokens (or one longer document).
template <class T>
std::vector<float> capture(const TargetModel& model, const WeightFolder& folder, const Documents& in,
                           const std::vector<int64_t>& taps, const Queue& queue) {
  constexpr int64_t kPack = 4096;
  const int64_t longest = *std::max_element(in.lengths.begin(), in.lengths.end());
  const int64_t pack = std::max(longest, std::min<int64_t>(kPack, static_cast<int64_t>(in.ids.size())));
  const int64_t h = model.hidden, k = static_cast<int64_t>(taps.size());
  Arena arena(queue.device);
  const Target<T> target{
      model,
      load_target<T>(model, folder, {*std::max_element(taps.begin(), taps.end()) + 1, false}, arena, queue),
      make_target_buffers<T>(model, pack, arena, queue)};
  PackedRow row("row", pack, arena);
  const View2<float> tap = arena.take2<float>("tap", pack, h);
  std::vector<float> host(static_cast<size_t>(pack * h)), out(in.ids.size() * static_cast<size_t>(k * h));
  int64_t first = 0;
  for (size_t d = 0; d < in.lengths.size();) {
    size_t end = d;
    int64_t tokens = 0;
    while (end < in.lengths.size() && (tokens == 0 || tokens + in.lengths[end] <= pack))
      tokens += in.lengths[end++];
    const Packed packed =
        row.set(std::span(in.ids).subspan(static_cast<size_t>(first), static_cast<size_t>(tokens)),
                std::span(in.lengths).subspan(d, end - d), queue);
    target_forward<T>(target, packed, taps, queue, [&](int i, View2<const T> stream) {
      cast<T, T, float>({stream, tap.rows_from(0, tokens)}, queue);
      copy_to_host(host.data(), tap.data, tokens * h * static_cast<int64_t>(sizeof(float)), queue);
      synchronize(queue);
      for (int64_t t = 0; t < tokens; ++t) {
        std::copy_n(host.data() + t * h, h, out.data() + ((first + t) * k + i) * h);
      }
    });
    first += tokens;
    d = end;
  }
  return out;
}

}  // namespace

int run_features(const Arguments& arguments) {
  std::string target, tokens, taps_text, out, precision = "fp32", device_text = "auto";
  Options options("features", "--target DIR --tokens SHARD --taps 0,1,2 --out FILE.safetensors",
                  "Writes `features` [tokens, taps, H] F32: the residual stream after each named layer "
                  "(0-based), before any norm,\n"
                  "for all documents of the token shard, each with its own positions.");
  options.need("target", &target, "folder of the target: config.json and safetensors")
      .need("tokens", &tokens, "token shard, glob or several separated by commas")
      .need("taps", &taps_text, "layers, 0-based, separated by commas")
      .need("out", &out, "safetensors file to write")
      .text("precision", &precision, "fp32 or bf16 (bf16 needs a GPU)")
      .text("device", &device_text, "auto, cpu or cuda");
  if (!options.parse(arguments)) return kOk;
  const Device device = choose_device_kind(device_text);
  const bool bf16 = bf16_asked(precision, device);
  const TargetModel model = read_target_config(target);
  const std::vector<int64_t> taps = parse_taps(taps_text, model.layers);
  const Documents documents = read_all(tokens, model);
  if (documents.ids.empty()) fail_input(fmt::format("{}: no documents", tokens));
  const WeightFolder folder(target);
  const std::vector<float> features = with_queue(device, bf16, [&]<class T>(const Queue& queue) {
    return capture<T>(model, folder, documents, taps, queue);
  });
  const int64_t count = static_cast<int64_t>(documents.ids.size());
  const std::string partial = out + ".partial";
  write_safetensors(
      partial,
      {{"features", Dtype::f32, {count, static_cast<int64_t>(taps.size()), model.hidden}, features.data()}},
      {{"taps", taps_text}, {"target", target}});
  std::filesystem::rename(partial, out);
  log_info(fmt::format("{}: features of {} tokens in {} documents, taps {}", out, count,
                       documents.lengths.size(), taps_text));
  return kOk;
}

}  // namespace slip
