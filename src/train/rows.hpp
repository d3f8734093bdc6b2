// Which documents make which row of which epoch: a pure function of (seed, epoch, documents, weights), the
// same on every rank and after every resume. The documents that an epoch draws (mixture.hpp) are ordered by a
// Philox key (or kept in order) and packed next-fit.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/config.hpp"
#include "io/tokens.hpp"
#include "train/mixture.hpp"

namespace slip {

struct Row {
  std::vector<TokenCorpus::Document> documents;
  int64_t tokens = 0;
};
// Without shuffle: by id, the second copies after all first ones.
std::vector<Row> epoch_rows(std::span<const TokenCorpus::Document> documents, int64_t row_tokens,
                            bool shuffle, uint64_t seed, int64_t epoch);

// Tokens of a row, read from the shards.
struct RowTokens {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  std::vector<int64_t> lengths, document_ids;
  std::vector<int32_t> sources = {}, copies = {};  // of the documents; empty: all 0
};
RowTokens read_row(const TokenCorpus&, const Row&);

// Steps of a run: a step takes `rows_per_step` rows and never spans two epochs.
int64_t steps_of_epoch(int64_t rows, int64_t rows_per_step);
// Optimizer steps of the whole run: min(train.steps, steps of data.epochs epochs), 0 meaning no limit.
int64_t total_steps(std::span<const TokenCorpus::Document>, std::span<const Source>, const DataConfig&,
                    const TrainConfig&);

}  // namespace slip
