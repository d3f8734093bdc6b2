#include "train/blocks.hpp"

#include <algorithm>

#include "core/check.hpp"
#include "core/random.hpp"

namespace slip {
namespace {
constexpr uint64_t kAnchorStream = fnv1a64("anchors"), kCopyStream = fnv1a64("anchors of copies");
}

std::vector<int> choose_anchors(std::span<const uint8_t> mask, int64_t count, uint64_t seed, int64_t epoch,
                                int64_t document, int32_t copy) {
  struct Candidate {
    uint64_t key;
    int position;
  };
  std::vector<Candidate> candidates;
  // One generator key per (seed, epoch, copy); document and position are the counter.
  uint64_t key = random_u64(seed ^ kAnchorStream, 0, static_cast<uint64_t>(epoch));
  if (copy > 0) key = random_u64(key ^ kCopyStream, 0, static_cast<uint64_t>(copy));
  for (size_t p = 0; p + 1 < mask.size(); ++p) {
    if (mask[p] && mask[p + 1])
      candidates.push_back({random_u64(key, static_cast<uint64_t>(document), p), static_cast<int>(p)});
  }
  if (static_cast<int64_t>(candidates.size()) > count) {
    std::nth_element(candidates.begin(), candidates.begin() + count, candidates.end(),
                     [](const Candidate& a, const Candidate& b) {
                       return a.key != b.key ? a.key < b.key : a.position < b.position;
                     });
    candidates.resize(static_cast<size_t>(count));
  }
  std::vector<int> anchors;
  for (const Candidate& c : candidates) anchors.push_back(c.position);
  std::sort(anchors.begin(), anchors.end());
  return anchors;
}

void add_document(RowBlocks& out, const DrafterModel& model, LabelMask rule, std::span<const int32_t> ids,
                  std::span<const uint8_t> mask, std::span<const int> anchors, int64_t start) {
  require(ids.size() == mask.size(), "add_document: ids and mask differ in length");
  out.block = model.block;
  const int64_t length = static_cast<int64_t>(ids.size());
  for (const int a : anchors) {
    require(a >= 0 && a < length, "add_document: an anchor is outside its document");
    out.anchor.push_back(static_cast<int>(start) + a);
    out.lo.push_back(static_cast<int>(start));
    bool open = true;  // prefix rule: no unsupervised token so far
    for (int64_t j = 0; j < model.block; ++j) {
      const int64_t t = a + j;
      const bool inside = t < length;
      const bool supervised = j >= 1 && inside && mask[static_cast<size_t>(t)] != 0;
      if (j >= 1 && !supervised) open = false;
      const bool counts = supervised && (rule == LabelMask::pointwise || open);
      out.ids.push_back(j == 0 ? ids[static_cast<size_t>(a)] : static_cast<int>(model.mask_token));
      out.position.push_back(a + static_cast<int>(j));
      out.label.push_back(inside ? ids[static_cast<size_t>(t)] : -1);
      out.valid.push_back(counts);
    }
  }
}

RowBlocks make_blocks(const RowTokens& row, const DrafterModel& model, LabelMask rule,
                      const AnchorDraw& draw) {
  RowBlocks out;
  out.block = model.block;
  int64_t start = 0;
  for (size_t d = 0; d < row.lengths.size(); ++d) {
    const size_t first = static_cast<size_t>(start), n = static_cast<size_t>(row.lengths[d]);
    const std::span<const uint8_t> mask = std::span(row.mask).subspan(first, n);
    const std::vector<int> anchors = choose_anchors(
        mask, draw.count, draw.seed, draw.epoch, row.document_ids[d], row.copies.empty() ? 0 : row.copies[d]);
    add_document(out, model, rule, std::span(row.ids).subspan(first, n), mask, anchors, start);
    if (!row.sources.empty()) out.source.resize(out.anchor.size(), row.sources[d]);
    start += row.lengths[d];
  }
  return out;
}

}  // namespace slip
