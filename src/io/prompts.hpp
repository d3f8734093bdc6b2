// What decoding reads besides the models: prompts of token shards, the tokens that end a response, the text
// of tokens.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace slip {

// Text of tokens by a shard's decode table; without a table ids in words.
class TokenText {
 public:
  TokenText() = default;
  TokenText(std::vector<int64_t> offsets, std::string bytes)
      : at_(std::move(offsets)), bytes_(std::move(bytes)) {}
  bool empty() const { return at_.empty(); }
  const std::vector<int64_t>& offsets() const { return at_; }
  const std::string& bytes() const { return bytes_; }
  std::string operator()(const std::vector<int32_t>& ids) const;

 private:
  std::vector<int64_t> at_;  // (V + 1)
  std::string bytes_;
};

struct Prompt {
  int64_t document;  // its number over all shards
  std::vector<int32_t> ids;
  int family = -1;  // index into Prompts::families
};
struct Prompts {
  std::vector<Prompt> list;
  std::vector<std::string> families;
  TokenText text;
  int64_t longest() const;  // tokens of the longest prompt; 0: there are none
};
// The first `most` documents (0: all): each up to its first supervised token. fail_input for a prompt of no
// tokens or one that leaves no room for an answer within the target's `max_position`.
Prompts read_prompts(const std::string& globs, int64_t vocab, int64_t max_position, int64_t most);

// eos_token_id, a number or a list, of generation_config.json and config.json together.
std::vector<int32_t> stop_tokens(const std::string& target_folder, int64_t vocab);

}  // namespace slip
