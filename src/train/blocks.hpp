// Anchors and labels (dflash.md 3.1, 3.2). An anchor is a position p of a document with mask[p] = mask[p+1] =
// 1; slot j of its block stands at p + j and learns the token there, if that is supervised and inside the
// document.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "model/config.hpp"
#include "train/rows.hpp"

namespace slip {

enum class LabelMask { prefix, pointwise };  // prefix: labels end at the first unsupervised token

// At most `count` candidates, ascending: those with the smallest Philox numbers of (seed, epoch, document,
// copy, position). Neither rank nor batch enters, so a resumed or re-split run draws the same.
std::vector<int> choose_anchors(std::span<const uint8_t> mask, int64_t count, uint64_t seed, int64_t epoch,
                                int64_t document, int32_t copy = 0);

// The blocks of a row in host memory. Rows of the drafter: block i, slot j is row i * block + j.
struct RowBlocks {
  int64_t block = 0;
  std::vector<int> anchor, lo;            // per block, in tokens of the row, anchors ascending
  std::vector<int32_t> source;            // per block: of its document; empty: all 0
  std::vector<int> ids, position, label;  // per drafter row; label is -1 where there is none
  std::vector<uint8_t> valid;             // per drafter row: the label counts
  int64_t count() const { return static_cast<int64_t>(anchor.size()); }
  int64_t context() const { return anchor.empty() ? 0 : anchor.back(); }  // tokens that any block sees
};

// Appends the blocks of one document that starts at token `start` of the row.
void add_document(RowBlocks& out, const DrafterModel& model, LabelMask rule, std::span<const int32_t> ids,
                  std::span<const uint8_t> mask, std::span<const int> anchors, int64_t start);

struct AnchorDraw {
  int64_t count;
  uint64_t seed;
  int64_t epoch;
};
RowBlocks make_blocks(const RowTokens&, const DrafterModel&, LabelMask, const AnchorDraw&);

}  // namespace slip
