#include "train/rows.hpp"

#include <algorithm>
#include <tuple>

#include "core/check.hpp"
#include "core/random.hpp"

namespace slip {
namespace {
constexpr uint64_t kOrderStream =
    fnv1a64("document order");  // keeps these numbers apart from those of the anchors
constexpr uint64_t kCopyStream = fnv1a64("document order of copies");

uint64_t order_key(const TokenCorpus::Document& d, uint64_t seed, int64_t epoch) {
  const uint64_t key =
      d.copy == 0 ? seed ^ kOrderStream : random_u64(seed ^ kCopyStream, 0, static_cast<uint64_t>(d.copy));
  return random_u64(key, static_cast<uint64_t>(epoch), static_cast<uint64_t>(d.id));
}
}  // namespace

std::vector<Row> epoch_rows(std::span<const TokenCorpus::Document> documents, int64_t row_tokens,
                            bool shuffle, uint64_t seed, int64_t epoch) {
  struct Keyed {
    uint64_t key;
    TokenCorpus::Document document;
  };
  std::vector<Keyed> order;
  order.reserve(documents.size());
  for (const auto& d : documents) order.push_back({shuffle ? order_key(d, seed, epoch) : 0, d});
  std::sort(order.begin(), order.end(), [](const Keyed& a, const Keyed& b) {
    return std::tie(a.key, a.document.copy, a.document.id) < std::tie(b.key, b.document.copy, b.document.id);
  });
  std::vector<Row> rows;
  for (const Keyed& k : order) {
    require(k.document.length <= row_tokens, "epoch_rows: a document is longer than a row");
    if (rows.empty() || rows.back().tokens + k.document.length > row_tokens) rows.emplace_back();
    rows.back().documents.push_back(k.document);
    rows.back().tokens += k.document.length;
  }
  return rows;
}

RowTokens read_row(const TokenCorpus& corpus, const Row& row) {
  RowTokens out;
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  for (const auto& d : row.documents) {
    corpus.read(d.id, ids, mask);
    require(static_cast<int64_t>(ids.size()) == d.length, "read_row: a document changed its length");
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.mask.insert(out.mask.end(), mask.begin(), mask.end());
    out.lengths.push_back(d.length);
    out.document_ids.push_back(d.id);
    out.sources.push_back(d.source);
    out.copies.push_back(d.copy);
  }
  return out;
}

int64_t steps_of_epoch(int64_t rows, int64_t rows_per_step) {
  return (rows + rows_per_step - 1) / rows_per_step;
}

int64_t total_steps(std::span<const TokenCorpus::Document> documents, std::span<const Source> sources,
                    const DataConfig& data, const TrainConfig& train) {
  if (data.epochs == 0) return train.steps;
  int64_t steps = 0;
  for (int64_t e = 0; e < data.epochs && (train.steps == 0 || steps < train.steps); ++e) {
    const auto rows =
        epoch_rows(drawn(documents, sources, data.seed, e), data.row_tokens, data.shuffle, data.seed, e);
    steps += steps_of_epoch(static_cast<int64_t>(rows.size()), train.rows_per_step);
  }
  return train.steps == 0 ? steps : std::min(steps, train.steps);
}

}  // namespace slip
