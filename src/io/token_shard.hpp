// One token shard: opened, its attributes and offsets checked. TokenCorpus joins them.
#pragma once
#include <string>
#include <vector>

#include "io/h5.hpp"
#include "io/tokens.hpp"

namespace slip {

struct TokenShard {
  H5Id file, ids, mask;
  TokenShardInfo info;                    // all but `unsupervised`, which the scan of the mask finds
  std::vector<int64_t> offsets;           // documents + 1
  std::vector<int64_t> ids_of_documents;  // of a feature shard: what its documents are called; else empty
};

// fail_input names file, item, declared and found value.
TokenShard open_token_shard(const std::string& path);

void read_ids(const TokenShard&, int64_t first, int64_t count, int32_t* out);
void read_mask(const TokenShard&, int64_t first, int64_t count, uint8_t* out);
// Fails for a mask value other than 0 and 1, or an id outside 0 <= id < vocab; values[0] is token `first`.
void check_mask_values(const TokenShard&, int64_t first, const std::vector<uint8_t>& values);
void check_id_values(const TokenShard&, int64_t first, const std::vector<int32_t>& values, int64_t vocab);
// Reads all of it: every id and mask value, then the checksums that the shard carries.
void check_shard(const TokenShard&, int64_t vocab);

// "document 3, position 5" of a token.
std::string place_of(const TokenShard&, int64_t token);

}  // namespace slip
