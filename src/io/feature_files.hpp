// All feature shards of a run: which document is where. Documents go by the ids they had when they were
// dumped.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/feature_shard.hpp"

namespace slip {

class FeatureFiles {
 public:
  // fail_input when shards disagree in anything but counts, or hold a document twice.
  explicit FeatureFiles(const std::vector<std::string>& paths);

  const FeatureSpec& spec() const { return shards_.front().info().spec; }
  const std::vector<FeatureShard>& shards() const { return shards_; }
  struct Place {
    const FeatureShard* shard;
    int64_t document;  // in it
  };
  std::optional<Place> find(int64_t id) const;

 private:
  std::vector<FeatureShard> shards_;
  std::unordered_map<int64_t, std::pair<size_t, int64_t>> where_;
};

// A document as training wants it: features of its first `length` tokens at taps[k] + token * hidden, where
// taps[k] = out + k * tap_stride; zeros where the shard has none (span = supervised: nobody reads them).
// fail_input when the shard holds other tokens than `ids` and `mask`, when a checksum is wrong, or when
// features are missing. `scratch` is kept between calls. Safe from several threads.
void read_document_taps(const FeatureFiles::Place&, std::span<const int32_t> ids,
                        std::span<const uint8_t> mask, Bf16* out, int64_t tap_stride,
                        std::vector<Bf16>& scratch);

}  // namespace slip
