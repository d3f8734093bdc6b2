// A dump as a folder: manifest.json lists the shards that belong to it, all.h5 shows them as one
// (data/FORMAT.md, chapter 2).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "io/feature_shard_writer.hpp"

namespace slip {

struct DumpManifest {
  FeatureSpec spec;
  bool complete = false;           // every document of the run that asked for the dump
  std::vector<ShardEntry> shards;  // by name
};
std::optional<DumpManifest> read_manifest(const std::string& folder);  // fail_input when it is broken
void write_manifest(const std::string& folder, const DumpManifest&);
void write_virtual_file(const std::string& folder, const DumpManifest&);

std::string shard_name(int64_t number);                             // "features-000012.h5"
std::optional<int64_t> shard_number(const std::string& file_name);  // of a finished or unfinished one
ShardEntry shard_entry(const std::string& path);                    // of a finished shard, opened and checked

// Feature shards named by folders (what the manifest lists, each of them there and of its size), files and
// globs (virtual files are left out), separated by commas.
std::vector<std::string> expand_feature_paths(const std::string& patterns);

}  // namespace slip
