#include "io/feature_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace slip {
namespace {
constexpr int64_t kPieceBytes = 512 << 10;
}  // namespace

FeatureFiles::FeatureFiles(const std::vector<std::string>& paths) {
  require(!paths.empty(), "FeatureFiles: no shards");
  for (const std::string& path : paths) {
    shards_.emplace_back(path);
    const FeatureShard& shard = shards_.back();
    if (shard.info().all)
      fail_input(fmt::format("{}: the virtual file over a dump; name its shards or its folder", path));
    const auto wrong = spec_differences(shard.info().spec, spec(), shards_.front().info().path);
    if (!wrong.empty()) fail_input(fmt::format("{}: {}", path, fmt::join(wrong, "; ")));
    for (int64_t d = 0; d < shard.info().documents; ++d) {
      const int64_t id = shard.tables().document_ids[static_cast<size_t>(d)];
      const auto [at, fresh] = where_.emplace(id, std::pair{shards_.size() - 1, d});
      if (!fresh)
        fail_input(fmt::format("{}: document {} is in {} as well: shards of two dumps?", path, id,
                               shards_[at->second.first].info().path));
    }
  }
}

std::optional<FeatureFiles::Place> FeatureFiles::find(int64_t id) const {
  const auto at = where_.find(id);
  if (at == where_.end()) return std::nullopt;
  return Place{&shards_[at->second.first], at->second.second};
}

void read_document_taps(const FeatureFiles::Place& place, std::span<const int32_t> ids,
                        std::span<const uint8_t> mask, Bf16* out, int64_t tap_stride,
                        std::vector<Bf16>& scratch) {
  const FeatureShard& shard = *place.shard;
  const FeatureTables& t = shard.tables();
  const FeatureSpec& spec = shard.info().spec;
  const size_t d = static_cast<size_t>(place.document);
  const int64_t length = static_cast<int64_t>(ids.size()), stored = t.doc_offsets[d + 1] - t.doc_offsets[d],
                rows = t.feature_offsets[d + 1] - t.feature_offsets[d];
  const auto bad = [&](const std::string& what) {
    fail_input(fmt::format("{}: document {} (id {}): {}", shard.info().path, d, t.document_ids[d], what));
  };
  if (length > stored)
    bad(fmt::format("{} tokens, this run reads {}: it was dumped with another data.max_length", stored,
                    length));
  bool same = length < stored || tokens_checksum(ids.data(), mask.data(), length) == t.tokens_xxh3[d];
  if (length < stored) {  // cut shorter in this run
    std::vector<int32_t> all_ids;
    std::vector<uint8_t> all_mask;
    shard.read_tokens(place.document, all_ids, all_mask);
    same = std::equal(ids.begin(), ids.end(), all_ids.begin()) &&
           std::equal(mask.begin(), mask.end(), all_mask.begin());
  }
  if (!same) bad("input_ids or loss_mask are not those of this run's token shards");
  const int64_t needed = spec.span == "all" ? length : supervised_span(mask.data(), length);
  if (rows < needed) bad(fmt::format("features of {} tokens, {} are needed", rows, needed));
  // In pieces that stay in a core's cache from the file to where they go, checksum included.
  const int64_t h = spec.hidden, taps = static_cast<int64_t>(spec.taps.size()),
                width = spec.values_per_token();
  const int64_t piece = std::max<int64_t>(1, kPieceBytes / spec.bytes_per_token());
  const size_t bytes = static_cast<size_t>(h) * 2;
  scratch.resize(static_cast<size_t>(piece * width));
  XXH3_state_t sum;
  XXH3_64bits_reset(&sum);
  for (int64_t first = 0; first < rows; first += piece) {
    const int64_t count = std::min(piece, rows - first);
    shard.read_features(t.feature_offsets[d] + first, count, scratch.data());
    XXH3_64bits_update(&sum, scratch.data(), static_cast<size_t>(count * width) * 2);
    for (int64_t k = 0; k < taps; ++k) {
      for (int64_t i = 0; i < count && first + i < length; ++i)
        std::memcpy(out + k * tap_stride + (first + i) * h, scratch.data() + i * width + k * h, bytes);
    }
  }
  if (const uint64_t found = XXH3_64bits_digest(&sum); found != t.features_xxh3[d])
    bad(fmt::format("dataset features: checksum {:016x} is declared, found {:016x}", t.features_xxh3[d],
                    found));
  for (int64_t k = 0; k < taps && rows < length; ++k)
    std::memset(out + k * tap_stride + rows * h, 0, static_cast<size_t>(length - rows) * bytes);
}

}  // namespace slip
