#include "io/tokens.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.hpp"
#include "io/token_shard.hpp"

namespace slip {
namespace {

constexpr int64_t kPiece = 1 << 20;  // tokens read at a time

// Shards of one run speak of the same tokens.
void check_agree(const TokenShardInfo& a, const TokenShardInfo& b) {
  const auto differ = [&](const char* what, const auto& in_a, const auto& in_b) {
    fail_input(fmt::format("{}: {} is {}, but {} in {}", b.path, what, in_b, in_a, a.path));
  };
  if (a.vocab_size != b.vocab_size) differ("vocab_size", a.vocab_size, b.vocab_size);
  if (a.mask_token_id != b.mask_token_id) differ("mask_token_id", a.mask_token_id, b.mask_token_id);
  if (a.tokenizer_sha256 != b.tokenizer_sha256 && !a.tokenizer_sha256.empty() &&
      !b.tokenizer_sha256.empty()) {
    differ("tokenizer_sha256", a.tokenizer_sha256, b.tokenizer_sha256);
  }
}

}  // namespace

struct TokenCorpus::Impl {
  std::vector<TokenShard> shards;
  std::vector<int64_t> first_id;  // per shard: global id of its first document
  struct Place {
    int64_t id, shard, document;
  };
  std::vector<Place> named;  // by id: documents of feature shards, which say what they are called
  std::vector<Document> usable;
  std::vector<TokenShardInfo> infos;
  int64_t max_length = 0;
  int64_t dropped = 0;

  int64_t cut(int64_t length) const { return max_length > 0 ? std::min(length, max_length) : length; }

  // (shard, document in it)
  std::pair<size_t, size_t> place_of_document(int64_t id) const {
    if (!named.empty()) {
      const auto at = std::lower_bound(named.begin(), named.end(), id,
                                       [](const Place& p, int64_t i) { return p.id < i; });
      require(at != named.end() && at->id == id, "TokenCorpus::read: no such document");
      return {static_cast<size_t>(at->shard), static_cast<size_t>(at->document)};
    }
    const auto after = std::upper_bound(first_id.begin(), first_id.end(), id);
    require(id >= 0 && after != first_id.begin(), "TokenCorpus::read: no such document");
    // Shards without documents share their first id with the next one: upper_bound finds the last, the one
    // that has it.
    const size_t shard = static_cast<size_t>(after - first_id.begin() - 1),
                 document = static_cast<size_t>(id - *(after - 1));
    require(document + 1 < shards[shard].offsets.size(), "TokenCorpus::read: no such document");
    return {shard, document};
  }

  // Walks the mask once, in pieces; documents cross the borders of pieces.
  void scan(TokenShard& s, int64_t first_document, int32_t source) {
    std::vector<uint8_t> mask;
    int64_t supervised = 0, document = 0,
            pair_at = -1;  // pair_at: position of the first supervised pair's second token
    bool before = false;
    const auto finish = [&] {
      const int64_t length =
          s.offsets[static_cast<size_t>(document) + 1] - s.offsets[static_cast<size_t>(document)];
      if (pair_at < 0) ++s.info.unsupervised;
      if (pair_at >= 0 && pair_at < cut(length)) {
        const int64_t id = s.ids_of_documents.empty() ? first_document + document
                                                      : s.ids_of_documents[static_cast<size_t>(document)];
        usable.push_back({id, cut(length), source});
      } else {
        ++dropped;
      }
      ++document;
      pair_at = -1;
      before = false;
    };
    for (int64_t first = 0; first < s.info.tokens; first += kPiece) {
      mask.resize(static_cast<size_t>(std::min(kPiece, s.info.tokens - first)));
      read_mask(s, first, static_cast<int64_t>(mask.size()), mask.data());
      check_mask_values(s, first, mask);
      for (size_t i = 0; i < mask.size(); ++i) {
        const int64_t token = first + static_cast<int64_t>(i);
        const bool on = mask[i] == 1;
        supervised += on;
        if (on && before && pair_at < 0) pair_at = token - s.offsets[static_cast<size_t>(document)];
        before = on;
        if (token + 1 == s.offsets[static_cast<size_t>(document) + 1]) finish();
      }
    }
    if (supervised != s.info.supervised) {
      fail_input(fmt::format("{}: attribute supervised_tokens is {}, loss_mask has {}", s.info.path,
                             s.info.supervised, supervised));
    }
  }
};

TokenCorpus::TokenCorpus(const std::vector<std::string>& paths, int64_t max_length,
                         const std::vector<int32_t>& sources)
    : impl_(std::make_unique<Impl>()) {
  require(!paths.empty(), "TokenCorpus: no shards");
  require(sources.empty() || sources.size() == paths.size(), "TokenCorpus: a source for each shard");
  impl_->max_length = max_length;
  int64_t next = 0;
  for (const std::string& path : paths) {
    impl_->shards.push_back(open_token_shard(path));
    TokenShard& shard = impl_->shards.back();
    check_agree(impl_->shards.front().info, shard.info);
    impl_->scan(shard, next, sources.empty() ? 0 : sources[impl_->shards.size() - 1]);
    impl_->first_id.push_back(next);
    impl_->infos.push_back(shard.info);
    next += shard.info.documents;
    for (size_t d = 0; d < shard.ids_of_documents.size(); ++d)
      impl_->named.push_back({shard.ids_of_documents[d], static_cast<int64_t>(impl_->shards.size()) - 1,
                              static_cast<int64_t>(d)});
  }
  if (impl_->named.empty()) return;
  if (static_cast<int64_t>(impl_->named.size()) != next)
    fail_input(fmt::format("{}: token shards and feature shards are not one list", paths.front()));
  std::vector<Impl::Place>& named = impl_->named;
  std::sort(named.begin(), named.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  for (size_t i = 1; i < named.size(); ++i) {
    if (named[i].id == named[i - 1].id) {
      fail_input(fmt::format("{}: document {} is in {} as well: shards of two dumps?",
                             paths[static_cast<size_t>(named[i].shard)], named[i].id,
                             paths[static_cast<size_t>(named[i - 1].shard)]));
    }
  }
  std::sort(impl_->usable.begin(), impl_->usable.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
}
TokenCorpus::~TokenCorpus() = default;
TokenCorpus::TokenCorpus(TokenCorpus&&) noexcept = default;
const std::vector<TokenCorpus::Document>& TokenCorpus::documents() const { return impl_->usable; }
int64_t TokenCorpus::dropped() const { return impl_->dropped; }
const std::vector<TokenShardInfo>& TokenCorpus::shards() const { return impl_->infos; }

void TokenCorpus::read(int64_t id, std::vector<int32_t>& ids, std::vector<uint8_t>& mask) const {
  const auto [shard_index, document] = impl_->place_of_document(id);
  const TokenShard& shard = impl_->shards[shard_index];
  const int64_t first = shard.offsets[document], length = impl_->cut(shard.offsets[document + 1] - first);
  ids.resize(static_cast<size_t>(length));
  mask.resize(static_cast<size_t>(length));
  read_ids(shard, first, length, ids.data());
  read_mask(shard, first, length, mask.data());
  check_id_values(shard, first, ids, shard.info.vocab_size);
  check_mask_values(shard, first, mask);
}

void TokenCorpus::validate(int64_t vocab) const {
  for (const TokenShard& s : impl_->shards) {
    if (s.info.vocab_size != vocab) {
      fail_input(fmt::format("{}: vocab_size is {}, the target's embedding has {} rows", s.info.path,
                             s.info.vocab_size, vocab));
    }
  }
  for (const TokenShard& s : impl_->shards) check_shard(s, vocab);
}

void TokenCorpus::require_answers() const {
  for (const TokenShardInfo& s : impl_->infos) {
    if (s.prompts && s.unsupervised > 0) {
      fail_input(
          fmt::format("{}: a shard of prompts: {} of {} documents hold no two consecutive supervised tokens; "
                      "training needs answers",
                      s.path, s.unsupervised, s.documents));
    }
  }
  if (!impl_->usable.empty()) return;
  fail_input(
      fmt::format("{}: no supervision: none of the {} documents holds two consecutive supervised tokens{}",
                  impl_->infos.front().path, impl_->dropped,
                  impl_->max_length > 0 ? fmt::format(" in its first {} tokens", impl_->max_length) : ""));
}

}  // namespace slip
