// Token shards (data/FORMAT.md): documents with loss masks, read lazily by every rank.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace slip {

// Expands "a.h5,dir/*.h5" to sorted paths per pattern; a pattern that matches nothing is fail_input naming it.
std::vector<std::string> expand_globs(const std::string& patterns);

struct TokenShardInfo {
  std::string path;
  int64_t documents, tokens, supervised;
  int64_t vocab_size, mask_token_id;
  std::string tokenizer_sha256, template_sha256, source;
};

// All shards of a run as one list of documents. Global document id = position in that list, before any dropping.
class TokenCorpus {
 public:
  // Opens, checks headers and doc_offsets, and scans the masks: a document counts as usable when, cut to max_length
  // tokens, two consecutive tokens are supervised. Unusable ones keep their id but are left out of `documents`.
  TokenCorpus(const std::vector<std::string>& paths, int64_t max_length);
  ~TokenCorpus();
  TokenCorpus(TokenCorpus&&) noexcept;

  struct Document {
    int64_t id;      // global
    int64_t length;  // after the cut
  };
  const std::vector<Document>& documents() const;  // usable ones, ascending id
  int64_t dropped() const;                         // without two consecutive supervised tokens after the cut
  const std::vector<TokenShardInfo>& shards() const;

  // Reads document `id` (cut): ids and mask are resized. Not thread-safe.
  void read(int64_t id, std::vector<int32_t>& ids, std::vector<uint8_t>& mask) const;

  // Reads everything and checks every id against 0 <= id < vocab and every mask value against {0,1}; fail_input names
  // shard, document, position, declared and found.
  void validate(int64_t vocab) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace slip
