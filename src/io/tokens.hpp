// Token shards (data/FORMAT.md): documents with loss masks, read lazily by every rank.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace slip {

// Expands "a.h5,dir/*.h5" to paths, sorted per pattern; unfinished files (.partial) are left out, a file
// named twice counts once. A pattern that matches nothing is fail_input naming it.
std::vector<std::string> expand_globs(const std::string& patterns);

struct TokenShardInfo {
  std::string path;
  int64_t documents, tokens, supervised;
  int64_t unsupervised;  // documents without two consecutive supervised tokens, before any cut
  int64_t vocab_size, mask_token_id;
  bool prompts;  // such documents are there on purpose
  std::string tokenizer_sha256, template_sha256, source;
};

// All shards of a run as one list of documents. Global document id = position in that list, before any
// dropping; feature shards hold tokens too and name their documents by the ids they had when they were
// dumped.
class TokenCorpus {
 public:
  // Opens, checks headers and doc_offsets, and scans the masks: a document counts as usable when, cut to
  // max_length tokens (0: not cut), two consecutive tokens are supervised. Unusable ones keep their id but
  // are left out of `documents`.
  // `sources`, where given: the number of each path's source (io/sources.hpp), for its documents to carry.
  TokenCorpus(const std::vector<std::string>& paths, int64_t max_length,
              const std::vector<int32_t>& sources = {});
  ~TokenCorpus();
  TokenCorpus(TokenCorpus&&) noexcept;

  struct Document {
    int64_t id;          // global
    int64_t length;      // after the cut
    int32_t source = 0;  // which entry of data.tokens it comes from
    int32_t copy = 0;    // counts how often an epoch has drawn it before (train/mixture.hpp)
  };
  const std::vector<Document>& documents() const;  // usable ones, ascending id
  int64_t dropped() const;                         // without two consecutive supervised tokens after the cut
  const std::vector<TokenShardInfo>& shards() const;

  // Reads document `id` (cut), usable or not: ids and mask are resized. Ids and mask values are checked. Not
  // thread-safe.
  void read(int64_t id, std::vector<int32_t>& ids, std::vector<uint8_t>& mask) const;

  // Refuses shards made for another number of rows than `vocab`, then reads everything and checks every id
  // against 0 <= id < vocab, every mask value against {0,1}, and the checksums; fail_input names shard,
  // document (its place in the shard), position, declared and found.
  void validate(int64_t vocab) const;
  // What training asks for beyond that: fail_input for a shard of prompts (FORMAT.md) and when nothing is
  // usable.
  void require_answers() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace slip
