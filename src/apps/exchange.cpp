// `exchange`: dumps to and from the per-document safetensors files of speculators,
// hidden_states/hs_{i}.safetensors: `token_ids` int64 [L] and `hidden_states` bf16 [L, K+1, H], whose last
// slot is the output of the last layer before the final norm. There a layer's number counts the embedding as
// 0, here it does not: layer id k+1 there is tap k here.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "apps/dump_commands.hpp"
#include "apps/version.hpp"
#include "core/log.hpp"
#include "io/durable.hpp"
#include "io/feature_files.hpp"
#include "io/feature_manifest.hpp"
#include "io/json_file.hpp"
#include "io/tokens.hpp"
#include "io/weight_fingerprint.hpp"
#include "model/config.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

constexpr const char* kRecord = "conversion.json";  // beside the files: what the slots are, in both countings

std::vector<int64_t> parse_layers(const std::string& text) {
  std::vector<int64_t> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    int64_t value = -1;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + comma, value);
    if (error != std::errc() || end != text.data() + comma || value < 1)
      fail_usage(fmt::format(
          "--layer-ids {}: want numbers from 1 on, separated by commas (the embedding is 0)", text));
    out.push_back(value);
    at = comma + 1;
  }
  return out;
}

int64_t file_index(const std::string& name) {
  int64_t i = -1;
  int end = 0;
  if (std::sscanf(name.c_str(), "hs_%ld.safetensors%n", &i, &end) != 1 ||
      end != static_cast<int>(name.size()))
    return -1;
  return i;
}

int export_dump(const std::string& dump, const std::string& out) {
  const FeatureFiles files(expand_feature_paths(dump));
  const FeatureSpec& spec = files.spec();
  if (spec.taps.back() != spec.target_layers - 1) {
    fail_usage(
        fmt::format("{}: taps are {}; the last slot of a file must be the output of the last layer: dump "
                    "with tap {} at the end",
                    dump, spec.taps, spec.target_layers - 1));
  }
  if (spec.span != "all")
    fail_usage(fmt::format("{}: span is {}; the files hold features of every token", dump, spec.span));
  fs::create_directories(fs::path(out) / "hidden_states");
  int64_t documents = 0;
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  std::vector<Bf16> features;
  for (const FeatureShard& s : files.shards()) {
    for (int64_t d = 0; d < s.info().documents; ++d, ++documents) {
      s.read_tokens(d, ids, mask);
      const int64_t n = static_cast<int64_t>(ids.size());
      features.resize(static_cast<size_t>(n * spec.values_per_token()));
      s.read_document(d, features.data());
      const std::vector<int64_t> wide(ids.begin(), ids.end()), wide_mask(mask.begin(), mask.end());
      const std::string path =
          (fs::path(out) / "hidden_states" /
           fmt::format("hs_{}.safetensors", s.tables().document_ids[static_cast<size_t>(d)]))
              .string();
      write_safetensors(path + ".partial", {{"token_ids", Dtype::i64, {n}, wide.data()},
                                            {"loss_mask", Dtype::i64, {n}, wide_mask.data()},
                                            {"hidden_states",
                                             Dtype::bf16,
                                             {n, static_cast<int64_t>(spec.taps.size()), spec.hidden},
                                             features.data()}});
      fs::rename(path + ".partial", path);
    }
  }
  std::vector<int64_t> layer_ids;
  for (const int64_t t : spec.taps) layer_ids.push_back(t + 1);
  layer_ids.pop_back();  // the last slot is not one of the drafter's
  const nlohmann::ordered_json record{{"taps", spec.taps},
                                      {"layer_ids_plus_one", layer_ids},
                                      {"last_slot", "output of the last layer, before the final norm"},
                                      {"target", spec.target},
                                      {"target_fingerprint", spec.target_fingerprint},
                                      {"writer", program_text()}};
  write_text_durably((fs::path(out) / kRecord).string(), record.dump(1) + "\n");
  log_info(fmt::format("{}: {} files; layer ids {} (k+1), and the last layer", out, documents, layer_ids));
  return kOk;
}

struct Import {
  std::string in, tokens, target, layer_ids, dump, bf16 = "float";
  bool keep_last = false;
  int64_t shard_bytes = int64_t{4} << 30;
};

// One file, checked against the document of the token shard.
std::vector<Bf16> read_states(const std::string& path, const std::vector<int32_t>& ids, int64_t slots,
                              int64_t hidden, int64_t keep) {
  const SafetensorsFile file(path);
  const int64_t n = static_cast<int64_t>(ids.size());
  const auto need = [&](const char* name, const std::vector<int64_t>& shape,
                        Dtype dtype) -> const TensorInfo& {
    const TensorInfo* t = file.find(name);
    if (t == nullptr) fail_input(fmt::format("{}: no tensor {}", path, name));
    if (t->shape != shape || t->dtype != dtype)
      fail_input(fmt::format("{}: {} is {} {}, {} {} is expected", path, name, t->dtype_text,
                             shape_text(t->shape), dtype_name(dtype), shape_text(shape)));
    return *t;
  };
  std::vector<int64_t> found(ids.size());
  file.read(need("token_ids", {n}, Dtype::i64), found.data());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (found[i] != ids[i])
      fail_input(fmt::format("{}: token_ids[{}] is {}, the token shard has {}", path, i, found[i], ids[i]));
  }
  std::vector<Bf16> all(static_cast<size_t>(n * slots * hidden));
  file.read(need("hidden_states", {n, slots, hidden}, Dtype::bf16), all.data());
  if (keep == slots) return all;
  std::vector<Bf16> out(static_cast<size_t>(n * keep * hidden));
  for (int64_t t = 0; t < n; ++t)
    std::copy_n(all.data() + t * slots * hidden, keep * hidden, out.data() + t * keep * hidden);
  return out;
}

int import_dump(const Import& a) {
  const TargetModel target = read_target_config(a.target);
  const TokenCorpus corpus(expand_globs(a.tokens), 0);
  const std::vector<int64_t> layer_ids = parse_layers(a.layer_ids);
  FeatureSpec spec;
  spec.target = fs::path(a.target).lexically_normal().filename().string();
  spec.architecture = target.model_type;
  spec.target_fingerprint = weight_fingerprint(WeightFolder(a.target));
  spec.target_layers = target.layers;
  for (const int64_t l : layer_ids) {
    if (l > target.layers)
      fail_usage(fmt::format("--layer-ids: {} is past the {} layers of {}", l, target.layers, a.target));
    spec.taps.push_back(l - 1);
  }
  if (a.keep_last) spec.taps.push_back(target.layers - 1);
  spec.hidden = target.hidden;
  spec.precision = "bf16";
  spec.rope_theta = target.rope.theta;
  spec.rope_type = target.rope.type;
  const TokenShardInfo& first = corpus.shards().front();
  spec.vocab_size = first.vocab_size;
  spec.mask_token_id = first.mask_token_id;
  spec.tokenizer_sha256 = first.tokenizer_sha256;
  spec.template_sha256 = first.template_sha256;
  spec.bf16 = a.bf16;
  spec.corpus_documents = static_cast<int64_t>(corpus.documents().size());
  spec.source = fmt::format("{}: hs_*.safetensors, layer ids {} (k+1)",
                            fs::path(a.in).lexically_normal().filename().string(), layer_ids);
  spec.writer = program_text();

  const fs::path folder =
      fs::exists(fs::path(a.in) / "hidden_states") ? fs::path(a.in) / "hidden_states" : fs::path(a.in);
  std::vector<std::pair<int64_t, std::string>> found;
  if (!fs::is_directory(folder)) fail_input(fmt::format("{}: no such folder", a.in));
  for (const fs::directory_entry& e : fs::directory_iterator(folder)) {
    const int64_t i = file_index(e.path().filename().string());
    if (i < 0) continue;
    if (fs::exists(e.path().string() + ".lock"))
      fail_input(fmt::format("{}: still being written (there is a .lock)", e.path().string()));
    found.push_back({i, e.path().string()});
  }
  if (found.empty()) fail_input(fmt::format("{}: no hs_*.safetensors", folder.string()));
  std::sort(found.begin(), found.end());
  if (read_manifest(a.dump)) fail_usage(fmt::format("--dump: {} holds a dump already", a.dump));
  fs::create_directories(a.dump);

  const int64_t keep = static_cast<int64_t>(spec.taps.size()),
                slots = static_cast<int64_t>(layer_ids.size()) + 1;
  int64_t documents_there = 0;
  for (const TokenShardInfo& s : corpus.shards()) documents_there += s.documents;
  DumpManifest manifest{spec, true, {}};
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  for (size_t i = 0; i < found.size();) {
    // As many documents as a shard takes; the files are read when it is written.
    ShardSize size;
    size_t end = i;
    for (; end < found.size(); ++end) {
      if (found[end].first >= documents_there)
        fail_input(fmt::format("{}: the token shards hold {} documents", found[end].second, documents_there));
      corpus.read(found[end].first, ids, mask);
      const int64_t n = static_cast<int64_t>(ids.size());
      const ShardSize with{size.documents + 1, size.tokens + n, size.feature_rows + n};
      if (end > i && shard_bytes_bound(spec, {}, with) > a.shard_bytes) break;
      size = with;
    }
    FeatureShardWriter writer(
        (fs::path(a.dump) / shard_name(static_cast<int64_t>(manifest.shards.size()))).string(), spec, {},
        size);
    for (; i < end; ++i) {
      corpus.read(found[i].first, ids, mask);
      const std::vector<Bf16> features = read_states(found[i].second, ids, slots, spec.hidden, keep);
      const FeatureDocument document{found[i].first, ids, mask, static_cast<int64_t>(ids.size())};
      writer.add({&document, 1}, features.data());
    }
    manifest.shards.push_back(writer.finish());
    write_manifest(a.dump, manifest);
  }
  write_virtual_file(a.dump, manifest);
  log_info(fmt::format("{}: {} documents, taps {} (layer ids {} in the k+1 counting)", a.dump, found.size(),
                       spec.taps, layer_ids));
  return kOk;
}

}  // namespace

int run_exchange(const Arguments& arguments) {
  Import a;
  std::string out;
  Options options(
      "exchange",
      "--dump DIR --out DIR | --in DIR --tokens SHARDS --target DIR --layer-ids 2,17,33 --dump DIR",
      "Converts between a dump and the files of speculators, hidden_states/hs_{i}.safetensors (i: the "
      "document's id, the row of\n"
      "its dataset). To them with --out: the dump's last tap must be the target's last layer. From them with "
      "--in.");
  options.need("dump", &a.dump, "the dump: read with --out, made with --in")
      .text("out", &out, "folder to write: hidden_states/ and conversion.json, which says what the slots are")
      .text("in", &a.in, "folder with hs_*.safetensors, or one that has it as hidden_states/")
      .text("tokens", &a.tokens,
            "token shards of the same documents, in the order of the indices: they have the loss masks")
      .text("target", &a.target, "folder of the target that computed them")
      .text("layer-ids", &a.layer_ids,
            "what the slots are but the last, in the counting of speculators (the embedding is 0)")
      .flag("keep-last", &a.keep_last, "keep the last slot, too, as the tap of the last layer")
      .text("bf16", &a.bf16, "float or uint16, as dump.bf16")
      .number("shard-bytes", &a.shard_bytes, "as dump.shard_bytes");
  if (!options.parse(arguments)) return kOk;
  if (out.empty() == a.in.empty()) fail_usage("exchange: one of --out and --in");
  if (a.bf16 != "float" && a.bf16 != "uint16")
    fail_usage(fmt::format("--bf16: '{}' is not one of float, uint16", a.bf16));
  if (!out.empty()) return export_dump(a.dump, out);
  if (a.tokens.empty() || a.target.empty() || a.layer_ids.empty())
    fail_usage("exchange: --in needs --tokens, --target and --layer-ids");
  return import_dump(a);
}

}  // namespace slip
