// Writes a token shard (data/FORMAT.md) of documents that a program made: `generate`.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace slip {

struct ShardOrigin {  // what a shard says about where its tokens come from: root attributes
  int64_t vocab_size = 0, mask_token_id = 0;
  std::string tokenizer, tokenizer_sha256, template_sha256, source, writer;
  std::map<std::string, std::string> more;  // attributes that the format does not know
};

class TokenShardContent {
 public:
  // Left out, and counted, when no two consecutive tokens are supervised. `family`: -1 for none.
  void add(const std::vector<int32_t>& ids, const std::vector<uint8_t>& mask, int32_t family);
  // The decode table of another shard; both empty: none.
  void set_table(std::string bytes, std::vector<int64_t> offsets);
  std::vector<std::string> family_names;

  int64_t documents() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  int64_t tokens() const { return offsets_.back(); }
  int64_t supervised() const { return supervised_; }
  int64_t dropped() const { return dropped_; }

 private:
  friend void write_token_shard(const std::string&, const ShardOrigin&, const TokenShardContent&);
  std::vector<int32_t> ids_, family_;
  std::vector<uint8_t> mask_;
  std::vector<int64_t> offsets_ = {0}, table_offsets_;
  std::string table_;
  int64_t supervised_ = 0, dropped_ = 0;
};

// Through path.partial, renamed when it is complete and on the disk. The bytes depend on the content alone.
void write_token_shard(const std::string& path, const ShardOrigin&, const TokenShardContent&);

// The text attributes of a shard, for one that is made from it.
ShardOrigin shard_origin(const std::string& path);

}  // namespace slip
