#include "launch/training_dump.hpp"

#include <fmt/format.h>

#include "core/log.hpp"
#include "device/buffer.hpp"
#include "io/durable.hpp"

namespace slip {

void prepare_training_dump(const RunOptions& o, const RunInputs& in) {
  if (o.config.dump.dir.empty()) return;
  if (weighted(in.sources)) {
    fail_usage(
        "dump.dir: with weights in data.tokens the rows of an epoch do not hold each document once; run "
        "`dump` "
        "first (it writes each once), then train with data.features beside data.tokens");
  }
  prepare_dump_folder(o.config.dump.dir, dump_spec(o, in));
}

TrainingDump::TrainingDump(const RunOptions& o, const RunInputs& in, const Plan& plan, int rank)
    : folder_(o.config.dump.dir),
      queue_rows_(o.config.dump.queue_rows),
      writer_(rank - plan.first_target()),
      hidden_(in.target.hidden),
      taps_(static_cast<int64_t>(in.drafter.taps.size())),
      all_documents_(static_cast<int64_t>(in.corpus->documents().size())) {
  const int64_t past = in.state.epoch > 0 ? INT64_MAX : in.state.epoch_step * o.config.train.rows_per_step;
  plan_ = plan_dump(o, in, {plan.targets, true, past});
  for (const ShardPlan& s : plan_.shards) {
    if (s.writer != writer_) continue;
    for (const int64_t row : s.rows) shard_of_row_.emplace(row, &s);
  }
  const int64_t missed = all_documents_ - plan_.documents_there - plan_.documents - plan_.documents_left_out;
  log_info(fmt::format(
      "dump to {} while epoch 0 is trained: {} documents in {} shards, at most {} bytes; {} bytes are free "
      "there{}{}",
      folder_, plan_.documents, plan_.shards.size(), plan_.bytes, free_bytes(folder_),
      plan_.documents_left_out > 0
          ? fmt::format("; dump.max_bytes leaves {} documents out", plan_.documents_left_out)
          : "",
      missed > 0 ? fmt::format("; {} documents do not come again in this epoch: `dump` adds them", missed)
                 : ""));
}

void TrainingDump::start(Device device) {
  if (shard_of_row_.empty() && writer_ != 0) return;
  dump_ = std::make_unique<FeatureDump>(
      FeatureDump::Setup{folder_, queue_rows_, plan_.row_values, device, writer_ == 0}, plan_);
}

Bf16* TrainingDump::begin(const RowId& id, const Peers& peers, double timeout_s) {
  row_ = -1;
  if (!dump_ || id.kind != kTrainRow || id.epoch != 0 || shard_of_row_.count(id.index) == 0) return nullptr;
  slot_ = dump_->acquire(peers, timeout_s);
  row_ = id.index;
  return dump_->memory(slot_);
}

void TrainingDump::keep(int i, const Bf16* tap, int64_t tokens, const Queue& queue) {
  copy_rows_to_host(dump_->memory(slot_) + i * hidden_, taps_ * hidden_ * 2, tap, hidden_ * 2, hidden_ * 2,
                    tokens, queue);
}

void TrainingDump::end(const RowTokens& tokens, const Queue& queue) {
  const auto at = shard_of_row_.find(row_);
  dump_->submit(slot_, tokens, *at->second, queue);
  shard_of_row_.erase(at);  // a row that is served twice is written once
}

void TrainingDump::finish(const Peers& peers, double timeout_s) {
  if (dump_) dump_->finish(peers, timeout_s);
}

void TrainingDump::close_folder() {
  if (!dump_ || writer_ != 0) return;
  dump_->list_rest();
  const std::optional<DumpManifest> m = read_manifest(folder_);
  int64_t documents = 0;
  for (const ShardEntry& e : m->shards) documents += e.documents;
  const DumpStats s = dump_->stats();
  close_dump_folder(folder_, documents == all_documents_);
  log_info(
      fmt::format("{}: {} of {} documents; this rank wrote {} shards, {} bytes of features, and waited "
                  "{:.1f} s for the disk",
                  folder_, documents, all_documents_, s.shards, s.bytes, s.wait_s));
}

}  // namespace slip
