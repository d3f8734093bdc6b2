// Writes one feature shard: NAME.partial, flushed, synced, renamed. Failures are `fail`; nothing of a shard
// that was not finished bears its name.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "io/feature_format.hpp"

namespace slip {

struct DecodeTable {  // bytes of id t: at[t] .. at[t+1]-1; empty: none
  std::vector<uint8_t> bytes;
  std::vector<int64_t> at;
};

struct FeatureDocument {
  int64_t id = 0;
  std::span<const int32_t> ids;
  std::span<const uint8_t> mask;
  int64_t feature_rows = 0;  // of its first so many tokens
};

// A shard as it is planned. It may end with fewer documents.
struct ShardSize {
  int64_t documents = 0, tokens = 0, feature_rows = 0;
};
// No shard of that size is a larger file.
int64_t shard_bytes_bound(const FeatureSpec&, const DecodeTable&, const ShardSize&);

struct ShardEntry {  // a line of the manifest
  std::string name;
  int64_t bytes = 0, documents = 0, tokens = 0, feature_rows = 0;
  std::string content_xxh3;
};

class FeatureShardWriter {
 public:
  // Refuses when the file system has less room than the shard needs, and reserves the room where the file
  // system can.
  FeatureShardWriter(const std::string& path, const FeatureSpec&, const DecodeTable&,
                     const ShardSize& planned);
  ~FeatureShardWriter();

  // One after another in `features`: [tokens of all documents][taps][hidden], features of every token of
  // every document.
  void add(std::span<const FeatureDocument> documents, const Bf16* features);
  ShardEntry finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace slip
