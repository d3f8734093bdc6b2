#include "launch/frozen_weights.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/collectives.hpp"
#include "comm/heartbeat.hpp"
#include "core/log.hpp"

namespace slip {

NodeLoad::NodeLoad(const Comm* comm, int kind, bool share_gpu, double timeout_s, Phases* phases,
                   const Queue& queue) {
  if (comm == nullptr || comm->size() == 1) return;
  const Peers& peers = comm->peers();
  hooks_.progress = [&peers, phases] {
    if (peers.watch) peers.watch();
    if (phases != nullptr) phases->fault_point_here("load/read");
  };
  const Deadline deadline = deadline_in(timeout_s);
  Comm group = split_by_node(*comm, kind, "weights of a node", deadline);
  if (!group || group.size() == 1) return;
  broadcast_.emplace(std::move(group), !queue.on_cpu() && !share_gpu, timeout_s, queue);
  spread_ = {.reads = broadcast_->root(),
             .pass = [this](void* data, int64_t bytes) { broadcast_->pass(data, bytes); },
             .finish = [this] { broadcast_->finish(); }};
  hooks_.spread = &spread_;
}

void NodeLoad::report() const {
  if (!broadcast_ || broadcast_->root()) return;
  log_info(fmt::format("{} bytes of weights received from {}, which reads", broadcast_->bytes(),
                       broadcast_->reader()));
}

template <class T>
TargetWeights<T> frozen_weights(const RunOptions& o, const RunInputs& in, const TargetParts& parts,
                                const Ranks& ranks, Arena& arena, const Queue& queue) {
  if (arena.measuring() || ranks.mpi == nullptr) {
    if (o.synthetic) return synthetic_target<T>(in.target, parts, o.config.data.seed, arena, queue);
    return load_target<T>(in.target, WeightFolder(o.config.target.path), parts, arena, queue);
  }
  const Comm& world = ranks.mpi->world();
  TargetWeights<T> weights;
  if (o.synthetic) {
    weights = synthetic_target<T>(in.target, parts, o.config.data.seed, arena, queue);
  } else {
    const NodeLoad load(&world, ranks.drafters ? 1 : 0, ranks.share_gpu, o.config.comm.timeout_s,
                        ranks.phases, queue);
    weights =
        load_target<T>(in.target, WeightFolder(o.config.target.path), parts, arena, queue, load.hooks());
    load.report();
  }
  // A rank that stands still or dies is the heartbeat's to notice; without one the time is bounded as any.
  constexpr double kLong = 7 * 24 * 3600;
  barrier(world, deadline_in(ranks.mpi->heartbeat() != nullptr ? kLong : o.config.comm.timeout_s),
          "to load its weights");
  return weights;
}

template <class T>
void load_drafter(Drafter<T>& d, const std::string& folder, const NodeLoad& load, const Queue& queue) {
  const WeightSpread* spread = load.hooks().spread;
  if (spread == nullptr || spread->reads) set_weights(d, published_parameters(d.layout, folder), queue);
  if (spread == nullptr) return;
  const int64_t bytes = d.layout.count * static_cast<int64_t>(sizeof(T)), most = StreamLimits().piece_bytes;
  for (int64_t at = 0; at < bytes; at += most) {
    spread->pass(reinterpret_cast<char*>(d.weights) + at, std::min(most, bytes - at));
    load.hooks().progress();
  }
  spread->finish();
}

template TargetWeights<float> frozen_weights(const RunOptions&, const RunInputs&, const TargetParts&,
                                             const Ranks&, Arena&, const Queue&);
template void load_drafter(Drafter<float>&, const std::string&, const NodeLoad&, const Queue&);
#if SLIP_HAVE_CUDA
template TargetWeights<Bf16> frozen_weights(const RunOptions&, const RunInputs&, const TargetParts&,
                                            const Ranks&, Arena&, const Queue&);
template void load_drafter(Drafter<Bf16>&, const std::string&, const NodeLoad&, const Queue&);
#endif

}  // namespace slip
