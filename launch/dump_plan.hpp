// What a dump will write before it writes it: which documents are there already, which rows are left, and how
// they are cut into shards. Every rank comes to the same plan from the manifest that rank 0 has put in order.
#pragma once
#include <string>
#include <vector>

#include "io/feature_manifest.hpp"
#include "launch/inputs.hpp"
#include "train/rows.hpp"

namespace slip {

struct ShardPlan {
  int64_t number = -1;  // of its name
  int64_t writer = 0;
  std::vector<int64_t> rows;  // of epoch 0, in order
  ShardSize size;
  int64_t bytes = 0;  // no more than that
};

struct DumpPlan {
  FeatureSpec spec;
  DecodeTable table;
  std::vector<ShardPlan> shards;    // still to be written, in order
  int64_t documents = 0, rows = 0;  // in them
  int64_t bytes = 0;                // of them, and what manifest and virtual file may need on top
  int64_t documents_there = 0, bytes_there = 0, shards_there = 0;
  int64_t documents_left_out = 0;  // dump.max_bytes
  int64_t row_values = 0;          // of the largest row: tokens * taps * hidden
};

FeatureSpec dump_spec(const RunOptions&, const RunInputs&);
// Puts the folder in order: makes it, removes what was not finished, lists finished shards that a killed
// process could not list any more. Refuses another dump's folder (exit code 2). For one rank.
void prepare_dump_folder(const std::string& folder, const FeatureSpec&);
// Writes the virtual file and says in the manifest whether this is all; false: it was so already.
bool close_dump_folder(const std::string& folder, bool complete);
// `writers`: the rows of epoch 0 are cut into shards for so many writers, which take turns: by shards (a dump
// by itself) or by rows (`by_rows`: row i belongs to writer i % count, as target ranks serve them).
struct DumpWriters {
  int64_t count = 1;
  bool by_rows = false;
  int64_t first_row = 0;  // rows before it do not come any more
};
DumpPlan plan_dump(const RunOptions&, const RunInputs&, const DumpWriters&);

// Features that are kept of a document.
int64_t kept_rows(const FeatureSpec&, std::span<const uint8_t> mask);

}  // namespace slip
