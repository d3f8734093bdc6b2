// Feature shards for `inspect`: what is read of them, and the statistics of each tap. For
// src/apps/inspect_feature*.cpp only.
#pragma once
#include <array>

#include "apps/inspect.hpp"
#include "io/feature_files.hpp"

namespace slip {

// What a path stands for: one shard, or all shards of a dump (its folder, or its virtual file).
FeatureFiles open_dump(const std::string& path);

struct DumpDocument {
  const FeatureShard* shard;
  int64_t place;  // in the shard
  int64_t id, tokens, rows;
};
// By id, at most `most` of them, evenly spread; -1: all.
std::vector<DumpDocument> dump_documents(const FeatureFiles&, int64_t most);

// One tap over all documents that were looked at.
struct TapStatistics {
  int64_t count = 0, nan = 0, inf = 0;  // values; the rest is of finite ones
  double sum = 0, squares = 0, abs_max = 0;
  std::vector<double> channel_squares;        // [hidden]
  std::vector<float> norms;                   // of tokens
  std::array<int64_t, 256> exponents{};       // of the bf16 exponent: how large values are
  void add(const Bf16* row, int64_t hidden);  // a token
  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
  double deviation() const;
};

Facts tap_facts(const FeatureSpec&, const std::vector<TapStatistics>&);
// A page of its own: the facts, the taps in pictures. Needs nothing from anywhere.
std::string dump_page(const Facts&);

}  // namespace slip
