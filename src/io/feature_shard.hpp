// One feature shard, or the virtual file over all shards of a dump: opened, checked, read. Opening believes
// nothing (data/FORMAT.md says what is refused): fail_input names file, item, declared and found value.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/feature_format.hpp"
#include "io/file.hpp"

namespace slip {

struct FeatureShardInfo {
  std::string path;
  bool all = false;  // the virtual file
  FeatureSpec spec;
  int64_t documents = 0, tokens = 0, supervised = 0, feature_rows = 0;
  std::string content_xxh3;
  int64_t bytes = 0;  // of the file
};

class FeatureShard {
 public:
  explicit FeatureShard(const std::string& path);
  ~FeatureShard();
  FeatureShard(FeatureShard&&) noexcept;

  const FeatureShardInfo& info() const { return info_; }
  const FeatureTables& tables() const { return tables_; }

  // Features of tokens first .. first+count-1, counted over all documents: [count][taps][hidden]. Safe from
  // several threads. Unfiltered shards are read with pread where HDF5 put the chunks; the others through
  // HDF5, which lets one thread in at a time.
  void read_features(int64_t first, int64_t count, Bf16* out) const;
  // Features of document d (its place in the shard), checked against its checksum.
  void read_document(int64_t d, Bf16* out) const;
  void read_tokens(int64_t d, std::vector<int32_t>& ids, std::vector<uint8_t>& mask) const;  // likewise

  // Every checksum. `progress` gets the bytes read since its last call.
  void verify(const std::function<void(int64_t)>& progress) const;

 private:
  struct Impl;
  FeatureShardInfo info_;
  FeatureTables tables_;
  std::unique_ptr<Impl> impl_;
};

// Which kind of HDF5 file this is: the attribute `format`; empty where there is none.
std::string h5_format(const std::string& path);

}  // namespace slip
