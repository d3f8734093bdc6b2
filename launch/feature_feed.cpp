#include "launch/feature_feed.hpp"

#include "kernels/features.hpp"

namespace slip {

template <class T>
FeatureFeed<T>::FeatureFeed(const RunOptions& o, const RunInputs& in, const Plan& plan, Ranks& ranks,
                            RowTable& rows, const TargetWeights<T>& weights, Arena& arena, const Queue& queue)
    : in_(in), plan_(plan), rows_(rows), queue_(queue) {
  const FeatureShape shape = feature_shape(o, in);
  const int64_t slot_values = shape.slot_bytes() / 2;
  if (plan.ranks == 1) {
    local_.emplace(Local{make_target<T>(o, in, weights, arena, queue),
                         PackedRow("target.row", shape.max_tokens, arena),
                         arena.take<Bf16>("features.slot", slot_values, "data.row_tokens")});
    return;
  }
  const int slots = static_cast<int>(o.config.roles.queue_rows);
  Bf16* memory = arena.take<Bf16>("features.slots", slots * slot_values, "roles.queue_rows");
  if (arena.measuring()) return;
  const std::vector<int>& targets = plan.rank[static_cast<size_t>(ranks.mpi->rank())].peers;
  inbox_ = std::make_unique<FeatureInbox>(ranks.control, *ranks.transport, shape, memory, slots, targets,
                                          o.config.comm.timeout_s, queue);
}

template <class T> void FeatureFeed<T>::request(const RowId& id) {
  const bool taken = inbox_->try_request(id, plan_.target_rank(id.index), rows_.tokens(id));
  require(taken, "FeatureFeed: no free slot");
}

template <class T> Features FeatureFeed<T>::get(const RowId& id, const RowTokens& tokens) {
  if (inbox_) {
    const FeatureSlot slot = inbox_->receive(id);
    if ((slot.flags & kStopAsked) != 0) stop_asked_ = true;
    Seen& seen = targets_[plan_.target_rank(id.index)];
    seen.busy = slot.target_busy_s;
    seen.wait = slot.target_wait_s;
    return {slot.data, slot.tokens, slot.waited_s, slot.slot};
  }
  const int64_t count = static_cast<int64_t>(tokens.ids.size());
  const Packed packed = local_->row.set(tokens.ids, tokens.lengths, queue_);
  const TapStore capture = [&](int tap) { return local_->slot + tap * count * in_.target.hidden; };
  target_forward<T>(
      local_->target, packed, in_.drafter.taps, queue_, [](int, View2<const T>) {}, capture);
  return {local_->slot, count, 0, -1};
}

template <class T> void FeatureFeed<T>::release(const Features& f) {
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

template class FeatureFeed<float>;
#if SLIP_HAVE_CUDA
template class FeatureFeed<Bf16>;
#endif

}  // namespace slip
