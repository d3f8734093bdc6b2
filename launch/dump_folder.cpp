#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/log.hpp"
#include "io/feature_shard.hpp"
#include "launch/dump_plan.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

// Keeps what the manifest lists and is there.
void check_listed(const std::string& folder, DumpManifest& m) {
  std::erase_if(m.shards, [&](const ShardEntry& e) {
    const std::string path = (fs::path(folder) / e.name).string();
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
      log_warn(fmt::format("{}: listed and missing: its {} documents are computed again", path, e.documents));
      return true;
    }
    const int64_t bytes = static_cast<int64_t>(fs::file_size(path, ignored));
    if (bytes != e.bytes)
      fail_input(fmt::format(
          "{}: {} bytes, the manifest says {}: remove the file, and its documents are computed again", path,
          bytes, e.bytes));
    const FeatureShard shard(path);
    if (shard.info().content_xxh3 != e.content_xxh3)
      fail_input(fmt::format("{}: content_xxh3 is {}, the manifest says {}", path, shard.info().content_xxh3,
                             e.content_xxh3));
    return false;
  });
}

// A shard that was renamed, but whose writer did not live to see it listed.
void adopt(const std::string& path, DumpManifest& m) {
  try {
    const FeatureShard shard(path);
    if (const auto wrong = spec_differences(m.spec, shard.info().spec, path); !wrong.empty())
      fail_usage(fmt::format("dump.dir: {} does not belong to this dump: {}", path, fmt::join(wrong, "; ")));
    shard.verify([](int64_t) {});
    m.shards.push_back(shard_entry(path));
    log_info(fmt::format("{}: complete, and listed now", path));
  } catch (const Error& e) {
    if (e.exit_code() != kBadInput) throw;
    log_warn(fmt::format("{}; it was not listed: removed, its documents are computed again", e.what()));
    fs::remove(path);
  }
}

}  // namespace

void prepare_dump_folder(const std::string& folder, const FeatureSpec& spec) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(fmt::format("dump.dir: {} cannot be made: {}", folder, error.message()));
  if (access(folder.c_str(), W_OK) != 0)
    fail(fmt::format("dump.dir: {} cannot be written: {}", folder, std::strerror(errno)));
  std::optional<DumpManifest> found = read_manifest(folder);
  if (found) {
    if (const auto wrong = spec_differences(spec, found->spec, folder); !wrong.empty())
      fail_usage(fmt::format("dump.dir: {} holds another dump: {}; name another folder", folder,
                             fmt::join(wrong, "; ")));
  }
  DumpManifest m = found.value_or(DumpManifest{});
  m.spec = spec;
  const size_t listed = m.shards.size();
  check_listed(folder, m);
  bool changed = m.shards.size() != listed;
  std::vector<std::string> names;
  for (const fs::directory_entry& e : fs::directory_iterator(folder))
    names.push_back(e.path().filename().string());
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const std::string path = (fs::path(folder) / name).string();
    const bool ours =
        shard_number(name).has_value() || name == "manifest.json.partial" || name == "all.h5.partial";
    if (!ours) continue;
    if (name.ends_with(".partial")) {
      log_info(fmt::format("{}: was not finished: removed", path));
      fs::remove(path);
    } else if (std::none_of(m.shards.begin(), m.shards.end(),
                            [&](const ShardEntry& e) { return e.name == name; })) {
      adopt(path, m);
      changed = true;
    }
  }
  if (!changed && found) return;
  std::sort(m.shards.begin(), m.shards.end(),
            [](const ShardEntry& a, const ShardEntry& b) { return a.name < b.name; });
  m.complete = false;
  write_manifest(folder, m);
}

bool close_dump_folder(const std::string& folder, bool complete) {
  DumpManifest m = read_manifest(folder).value();
  const bool done = m.complete == complete && fs::exists(fs::path(folder) / "all.h5");
  if (done) return false;
  m.complete = complete;
  write_virtual_file(folder, m);
  write_manifest(folder, m);
  return true;
}

}  // namespace slip
