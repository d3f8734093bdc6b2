// The feature shard (data/FORMAT.md, chapter 2): what all shards of a dump share, and how it is called.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/bf16.hpp"
#include "io/h5.hpp"

namespace slip {

inline constexpr const char* kFeatureFormat = "slipstream-features";
inline constexpr const char* kFeatureAllFormat = "slipstream-features-all";
inline constexpr int64_t kFeatureVersion = 1;

struct FeatureSpec {
  std::string target, architecture, target_fingerprint;
  int64_t target_layers = 0;
  std::vector<int64_t> taps;  // 0-based: the stream after that layer
  int64_t hidden = 0;
  std::string dtype = "bfloat16", precision;
  int64_t final_norm_applied = 0;
  double rope_theta = 0;
  std::string rope_type, tokenizer_sha256, template_sha256;
  int64_t vocab_size = 0, mask_token_id = 0;
  std::string span = "all", bf16 = "float", compress = "none";
  int64_t seed = 0, shuffle = 0, row_tokens = 0, max_length = 0, corpus_documents = 0, corpus_tokens = 0;
  std::string source, writer;

  int64_t values_per_token() const { return static_cast<int64_t>(taps.size()) * hidden; }
  int64_t bytes_per_token() const { return values_per_token() * 2; }
};

// The one list of names: attributes of a shard, and the object "dump" of a manifest.
template <class S, class F> void spec_fields(S& s, F&& f) {
  f("target", s.target);
  f("architecture", s.architecture);
  f("target_fingerprint", s.target_fingerprint);
  f("target_layers", s.target_layers);
  f("taps", s.taps);
  f("hidden", s.hidden);
  f("dtype", s.dtype);
  f("precision", s.precision);
  f("final_norm_applied", s.final_norm_applied);
  f("rope_theta", s.rope_theta);
  f("rope_type", s.rope_type);
  f("tokenizer_sha256", s.tokenizer_sha256);
  f("template_sha256", s.template_sha256);
  f("vocab_size", s.vocab_size);
  f("mask_token_id", s.mask_token_id);
  f("span", s.span);
  f("bf16", s.bf16);
  f("compress", s.compress);
  f("seed", s.seed);
  f("shuffle", s.shuffle);
  f("row_tokens", s.row_tokens);
  f("max_length", s.max_length);
  f("corpus_documents", s.corpus_documents);
  f("corpus_tokens", s.corpus_tokens);
  f("source", s.source);
  f("writer", s.writer);
}

// "taps is [0, 2], [0, 3] in B; ..." for every field but `writer` in which they differ; empty: none.
std::vector<std::string> spec_differences(const FeatureSpec& mine, const FeatureSpec& other,
                                          const std::string& where);

H5Id bf16_type();                                     // the floating-point type of FORMAT.md
void put_spec(const H5Id& file, const FeatureSpec&);  // as attributes
FeatureSpec read_spec(const std::string& path, const H5Id& file);

// What a document's checksums are taken over.
uint64_t tokens_checksum(const int32_t* ids, const uint8_t* mask, int64_t tokens);
uint64_t features_checksum(const void* features, int64_t bytes);

// Documents of a shard: where they are, what they are called, their checksums.
struct FeatureTables {
  std::vector<int64_t> doc_offsets{0}, feature_offsets{0}, document_ids;
  std::vector<uint64_t> features_xxh3, tokens_xxh3;
  int64_t documents() const { return static_cast<int64_t>(document_ids.size()); }
  std::string content_xxh3() const;  // FORMAT.md
};

// Tokens of a document that have features under span = supervised: those before its last possible anchor.
int64_t supervised_span(const uint8_t* mask, int64_t tokens);

}  // namespace slip
