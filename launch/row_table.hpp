// From a row's id to its documents, on every rank alike; the rows of the last epochs asked for are kept.
#pragma once
#include <map>

#include "comm/mailbox_wire.hpp"
#include "launch/inputs.hpp"
#include "train/rows.hpp"

namespace slip {

class RowTable {
 public:
  RowTable(const RunInputs& in, const DataConfig& data) : in_(in), data_(data) {}

  const std::vector<Row>& train_rows(int64_t epoch) {
    auto it = train_.find(epoch);
    if (it == train_.end()) {
      it = train_.emplace(epoch, training_rows(in_, data_, epoch)).first;
      while (train_.size() > 3) train_.erase(train_.begin());  // requests run at most one epoch ahead
    }
    return it->second;
  }
  // Held-out rows: in the order of the shards, always the same.
  const std::vector<Row>& eval_rows() {
    if (eval_.empty() && in_.eval) eval_ = epoch_rows(in_.eval->documents(), data_.row_tokens, false, 0, 0);
    return eval_;
  }
  void set_replay(std::vector<RowTokens> rows) { replay_ = std::move(rows); }
  const std::vector<RowTokens>& replay_rows() const { return replay_; }

  int64_t tokens(const RowId& id) {
    return id.kind == kReplayRow ? static_cast<int64_t>(read(id).ids.size()) : row(id).tokens;
  }
  RowTokens read(const RowId& id) {
    if (id.kind == kReplayRow) return replay_.at(static_cast<size_t>(id.index));
    return read_row(id.kind == kEvalRow ? *in_.eval : *in_.corpus, row(id));
  }

  // Not of a replayed row.
  const Row& row(const RowId& id) {
    return id.kind == kEvalRow ? eval_rows().at(static_cast<size_t>(id.index))
                               : train_rows(id.epoch).at(static_cast<size_t>(id.index));
  }

 private:
  const RunInputs& in_;
  const DataConfig& data_;
  std::map<int64_t, std::vector<Row>> train_;
  std::vector<Row> eval_;
  std::vector<RowTokens> replay_;  // of the last evaluation
};

}  // namespace slip
