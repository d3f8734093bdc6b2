#include "io/feature_manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "io/durable.hpp"
#include "io/feature_shard.hpp"
#include "io/h5_items.hpp"
#include "io/json_file.hpp"
#include "io/tokens.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

constexpr const char* kManifestFormat = "slipstream-features-manifest";
constexpr const char* kManifest = "manifest.json";
constexpr int64_t kMaxManifest = int64_t{1} << 30;

template <class V>
void get(const std::string& path, const nlohmann::json& object, const char* name, V& value) {
  try {
    value = object.at(name).get<V>();
  } catch (const nlohmann::json::exception& e) {
    fail_input(fmt::format("{}: {}: {}", path, name, json_complaint(e)));
  }
}

// bfloat16 NaN: what shows where a source is missing.
constexpr uint16_t kNan = 0x7fc0;

void virtual_dataset(const H5Id& file, const char* name, const H5Id& type, const std::vector<hsize_t>& shape,
                     const DumpManifest& m, const std::vector<int64_t>& rows, const void* fill) {
  const int rank = static_cast<int>(shape.size());
  const H5Id space(H5Screate_simple(rank, shape.data(), nullptr), H5Sclose),
      how = timeless(H5P_DATASET_CREATE);
  if (fill != nullptr) check_h5(H5Pset_fill_value(how.get(), type.get(), fill), name);
  std::vector<hsize_t> at(shape.size(), 0), part = shape;
  for (size_t i = 0; i < m.shards.size(); ++i) {
    part[0] = static_cast<hsize_t>(rows[i]);
    if (part[0] == 0) continue;
    const H5Id source(H5Screate_simple(rank, part.data(), nullptr), H5Sclose);
    check_h5(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, at.data(), nullptr, part.data(), nullptr),
             name);
    check_h5(H5Pset_virtual(how.get(), space.get(), m.shards[i].name.c_str(), name, source.get()), name);
    at[0] += part[0];
  }
  check_h5(H5Sselect_all(space.get()), name);
  const H5Id d(H5Dcreate2(file.get(), name, type.get(), space.get(), H5P_DEFAULT, how.get(), H5P_DEFAULT),
               H5Dclose);
  check_h5(d.get(), name);
}

}  // namespace

std::string shard_name(int64_t number) { return fmt::format("features-{:06}.h5", number); }

std::optional<int64_t> shard_number(const std::string& file_name) {
  int64_t number = 0;
  int end = 0;
  if (std::sscanf(file_name.c_str(), "features-%ld.h5%n", &number, &end) != 1 || end == 0 || number < 0)
    return std::nullopt;
  const std::string rest = file_name.substr(static_cast<size_t>(end));
  if (!rest.empty() && rest != ".partial") return std::nullopt;
  return number;
}

ShardEntry shard_entry(const std::string& path) {
  const FeatureShard shard(path);
  const FeatureShardInfo& i = shard.info();
  return {fs::path(path).filename().string(), i.bytes, i.documents, i.tokens, i.feature_rows, i.content_xxh3};
}

std::optional<DumpManifest> read_manifest(const std::string& folder) {
  const std::string path = (fs::path(folder) / kManifest).string();
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  const nlohmann::json j = read_json_file(path, kMaxManifest);
  std::string format;
  int64_t version = 0;
  get(path, j, "format", format);
  if (format != kManifestFormat)
    fail_input(
        fmt::format("{}: format is \"{}\", \"{}\" is expected: not a dump", path, format, kManifestFormat));
  get(path, j, "format_version", version);
  if (version != kFeatureVersion)
    fail_input(
        fmt::format("{}: format_version is {}, this program reads {}", path, version, kFeatureVersion));
  DumpManifest m;
  get(path, j, "complete", m.complete);
  nlohmann::json dump, shards;
  get(path, j, "dump", dump);
  spec_fields(m.spec, [&](const char* name, auto& value) { get(path, dump, name, value); });
  get(path, j, "shards", shards);
  for (const nlohmann::json& s : shards) {
    ShardEntry& e = m.shards.emplace_back();
    get(path, s, "name", e.name);
    if (!shard_number(e.name) || e.name.ends_with(".partial"))
      fail_input(fmt::format("{}: \"{}\" is not the name of a shard", path, e.name));
    get(path, s, "bytes", e.bytes);
    get(path, s, "documents", e.documents);
    get(path, s, "tokens", e.tokens);
    get(path, s, "feature_rows", e.feature_rows);
    get(path, s, "content_xxh3", e.content_xxh3);
  }
  return m;
}

void write_manifest(const std::string& folder, const DumpManifest& m) {
  nlohmann::ordered_json j{
      {"format", kManifestFormat}, {"format_version", kFeatureVersion}, {"complete", m.complete}};
  spec_fields(m.spec, [&](const char* name, const auto& value) { j["dump"][name] = value; });
  j["shards"] = nlohmann::ordered_json::array();
  for (const ShardEntry& e : m.shards) {
    j["shards"].push_back({{"name", e.name},
                           {"bytes", e.bytes},
                           {"documents", e.documents},
                           {"tokens", e.tokens},
                           {"feature_rows", e.feature_rows},
                           {"content_xxh3", e.content_xxh3}});
  }
  write_text_durably((fs::path(folder) / kManifest).string(),
                     j.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void write_virtual_file(const std::string& folder, const DumpManifest& m) {
  h5_quiet();
  const std::string path = (fs::path(folder) / "all.h5").string(), partial = path + ".partial";
  FeatureTables all;
  std::vector<int64_t> tokens, rows;
  int64_t supervised = 0;
  const auto join = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  const auto shift = [](std::vector<int64_t>& to, const std::vector<int64_t>& from) {
    const int64_t base = to.back();
    for (size_t i = 1; i < from.size(); ++i) to.push_back(base + from[i]);
  };
  for (const ShardEntry& e : m.shards) {
    const FeatureShard shard((fs::path(folder) / e.name).string());
    const FeatureTables& t = shard.tables();
    shift(all.doc_offsets, t.doc_offsets);
    shift(all.feature_offsets, t.feature_offsets);
    join(all.document_ids, t.document_ids);
    join(all.features_xxh3, t.features_xxh3);
    join(all.tokens_xxh3, t.tokens_xxh3);
    tokens.push_back(shard.info().tokens);
    rows.push_back(shard.info().feature_rows);
    supervised += shard.info().supervised;
  }
  {
    const H5Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    check_h5(H5Pset_file_locking(access.get(), 0, 1), "file access");
    check_h5(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110), "file access");
    const H5Id file(H5Fcreate(partial.c_str(), H5F_ACC_TRUNC, timeless(H5P_FILE_CREATE).get(), access.get()),
                    H5Fclose);
    check_h5(file.get(), partial);
    h5_put(file, "format", std::string(kFeatureAllFormat));
    h5_put(file, "format_version", kFeatureVersion);
    put_spec(file, m.spec);
    const hsize_t n = static_cast<hsize_t>(all.doc_offsets.back()),
                  f = static_cast<hsize_t>(all.feature_offsets.back());
    const H5Id bits = m.spec.bf16 == "uint16" ? H5Id(H5Tcopy(H5T_STD_U16LE), H5Tclose) : bf16_type();
    if (m.spec.bf16 != "uint16")
      check_h5(H5Tcommit2(file.get(), "bfloat16", bits.get(), H5P_DEFAULT,
                          timeless(H5P_DATATYPE_CREATE).get(), H5P_DEFAULT),
               partial);
    virtual_dataset(file, "features", bits, {f, m.spec.taps.size(), static_cast<hsize_t>(m.spec.hidden)}, m,
                    rows, &kNan);
    virtual_dataset(file, "input_ids", H5Id(H5Tcopy(H5T_STD_I32LE), H5Tclose), {n}, m, tokens, nullptr);
    virtual_dataset(file, "loss_mask", H5Id(H5Tcopy(H5T_STD_U8LE), H5Tclose), {n}, m, tokens, nullptr);
    const auto put = [&](const char* name, hid_t type, const auto& values) {
      h5_put_dataset(file, name, type, static_cast<int64_t>(values.size()), values.data());
    };
    put("doc_offsets", H5T_STD_I64LE, all.doc_offsets);
    put("feature_offsets", H5T_STD_I64LE, all.feature_offsets);
    put("document_ids", H5T_STD_I64LE, all.document_ids);
    put("features_xxh3", H5T_STD_U64LE, all.features_xxh3);
    put("tokens_xxh3", H5T_STD_U64LE, all.tokens_xxh3);
    h5_put(file, "documents", all.documents());
    h5_put(file, "tokens", all.doc_offsets.back());
    h5_put(file, "supervised_tokens", supervised);
    h5_put(file, "feature_rows", all.feature_offsets.back());
    h5_put(file, "content_xxh3", all.content_xxh3());
    check_h5(H5Fflush(file.get(), H5F_SCOPE_LOCAL), partial);
  }
  rename_durably(partial, path);
}

std::vector<std::string> expand_feature_paths(const std::string& patterns) {
  std::vector<std::string> out;
  std::string files;  // what is not a folder, for the usual expansion
  for (size_t at = 0; at <= patterns.size();) {
    const size_t comma = std::min(patterns.find(',', at), patterns.size());
    std::string p = patterns.substr(at, comma - at);
    p.erase(0, std::min(p.find_first_not_of(" \t"), p.size()));
    p.erase(p.find_last_not_of(" \t") + 1);
    at = comma + 1;
    std::error_code ignored;
    if (!fs::is_directory(p, ignored)) {
      if (!p.empty()) files += fmt::format("{}{}", files.empty() ? "" : ",", p);
      continue;
    }
    const std::optional<DumpManifest> m = read_manifest(p);
    if (!m)
      fail_input(fmt::format("{}: no manifest.json: not a dump, or one of which no shard is complete", p));
    for (const ShardEntry& e : m->shards) {
      const std::string path = (fs::path(p) / e.name).string();
      if (!fs::exists(path, ignored))
        fail_input(fmt::format("{}: listed in {}/manifest.json and missing", path, p));
      const int64_t found = static_cast<int64_t>(fs::file_size(path, ignored));
      if (found != e.bytes)
        fail_input(fmt::format("{}: {} bytes, {}/manifest.json says {}", path, found, p, e.bytes));
      out.push_back(path);
    }
    if (m->shards.empty()) fail_input(fmt::format("{}/manifest.json lists no shard", p));
  }
  if (!files.empty()) {
    for (const std::string& path : expand_globs(files)) {
      if (h5_format(path) != kFeatureAllFormat) out.push_back(path);
    }
  }
  if (out.empty()) fail_input(fmt::format("\"{}\" names no feature shard", patterns));
  return out;
}

}  // namespace slip
