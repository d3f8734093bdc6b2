#include "launch/feature_feed.hpp"

#include "launch/training_dump.hpp"

namespace slip {

template <class T>
FeatureFeed<T>::FeatureFeed(const RunOptions& o, const RunInputs& in, const Plan& plan, Ranks& ranks,
                            RowTable& rows, const TargetWeights<T>& weights, Arena& arena, const Queue& queue)
    : in_(in), plan_(plan), rows_(rows), queue_(queue), ranks_(ranks), timeout_s_(o.config.comm.timeout_s) {
  const FeatureShape shape = feature_shape(o, in);
  const int64_t slot_values = shape.slot_bytes() / 2;
  const int slots = static_cast<int>(o.config.roles.queue_rows);
  if (in.features || in.eval_features) {
    Bf16* memory = arena.take<Bf16>("features.read", slots * slot_values, "roles.queue_rows");
    if (!arena.measuring()) {
      disk_ = std::make_unique<FeatureDisk>(
          in.features ? &*in.features : nullptr, in.eval_features ? &*in.eval_features : nullptr,
          FeatureDisk::Setup{slots, o.config.data.reader_threads, shape.max_tokens, memory, queue.device});
    }
  }
  if (plan.offline) return;
  if (plan.ranks == 1) {
    local_.emplace(Local{make_target<T>(o, in, weights, arena, queue),
                         PackedRow("target.row", shape.max_tokens, arena),
                         arena.take<Bf16>("features.slot", slot_values, "data.row_tokens")});
    return;
  }
  Bf16* memory = arena.take<Bf16>("features.slots", slots * slot_values, "roles.queue_rows");
  if (arena.measuring()) return;
  const std::vector<int>& targets = plan.rank[static_cast<size_t>(ranks.mpi->rank())].peers;
  inbox_ = std::make_unique<FeatureInbox>(ranks.control, *ranks.transport, shape, memory, slots, targets,
                                          o.config.comm.timeout_s, queue);
}

template <class T> bool FeatureFeed<T>::try_request(const RowId& id) {
  if (on_disk(id)) return disk_->try_request(id, rows_.read(id));
  return inbox_ && inbox_->try_request(id, plan_.target_rank(id.index), rows_.tokens(id));
}

template <class T> Features FeatureFeed<T>::get(const RowId& id, const RowTokens& tokens) {
  if (on_disk(id)) {
    // A row that nobody could ask for ahead is read now.
    if (!disk_->requested(id)) require(disk_->try_request(id, tokens), "FeatureFeed: no free slot");
    static const Peers kAlone;
    const FeatureDisk::Ready row =
        disk_->receive(id, ranks_.mpi != nullptr ? ranks_.mpi->peers() : kAlone, timeout_s_);
    return {row.features, row.tokens, row.waited_s, row.slot, true};
  }
  if (inbox_) {
    const FeatureSlot slot = inbox_->receive(id);
    if ((slot.flags & kStopAsked) != 0) stop_asked_ = true;
    Seen& seen = targets_[plan_.target_rank(id.index)];
    seen.busy = slot.target_busy_s;
    seen.wait = slot.target_wait_s;
    seen.dump = slot.dump_wait_s;
    seen.late = slot.target_late_s;
    seen.taps = slot.taps_sent;
    seen.early = slot.taps_early;
    return {slot.data, slot.tokens, slot.waited_s, slot.slot, false, slot.ready};
  }
  const int64_t count = static_cast<int64_t>(tokens.ids.size());
  const Packed packed = local_->row.set(tokens.ids, tokens.lengths, queue_);
  const TapStore capture = [&](int tap) { return local_->slot + tap * count * in_.target.hidden; };
  const bool dumped =
      ranks_.dump != nullptr && ranks_.dump->begin(id, ranks_.mpi->peers(), timeout_s_) != nullptr;
  const OnTap<T> keep = [&](int tap, View2<const T>) {
    if (dumped) ranks_.dump->keep(tap, capture(tap), count, queue_);
  };
  target_forward<T>(local_->target, packed, in_.drafter.taps, queue_, keep, capture);
  if (dumped) ranks_.dump->end(tokens, queue_);
  if (ranks_.dump != nullptr) targets_[0].dump = ranks_.dump->wait_s();
  return {local_->slot, count, 0, -1};
}

template <class T> void FeatureFeed<T>::release(const Features& f) {
  if (f.from_disk) return disk_->release(f.slot);  // run_row has waited for what reads it
  if (inbox_) inbox_->release(f.slot);
}

template <class T> double FeatureFeed<T>::target_wait_share() {
  double share = 0;
  for (auto& [rank, s] : targets_) {
    const double busy = s.busy - s.last_busy, wait = s.wait - s.last_wait;
    if (busy + wait > 0) share += wait / (busy + wait);
    s.last_busy = s.busy;
    s.last_wait = s.wait;
  }
  return targets_.empty() ? 0 : share / static_cast<double>(targets_.size());
}

template <class T> double FeatureFeed<T>::dump_wait_s() {
  double sum = 0;
  for (auto& [rank, s] : targets_) {
    sum += s.dump - s.last_dump;
    s.last_dump = s.dump;
  }
  return targets_.empty() ? 0 : sum / static_cast<double>(targets_.size());
}

template <class T> TapTimes FeatureFeed<T>::tap_times() {
  TapTimes out;
  int64_t taps = 0, early = 0;
  for (auto& [rank, s] : targets_) {
    out.late_s += s.late - s.last_late;
    taps += s.taps - s.last_taps;
    early += s.early - s.last_early;
    s.last_late = s.late, s.last_taps = s.taps, s.last_early = s.early;
  }
  if (!targets_.empty()) out.late_s /= static_cast<double>(targets_.size());
  if (taps > 0) out.early_share = static_cast<double>(early) / static_cast<double>(taps);
  return out;
}

template class FeatureFeed<float>;
#if SLIP_HAVE_CUDA
template class FeatureFeed<Bf16>;
#endif

}  // namespace slip
