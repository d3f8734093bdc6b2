// The frozen weights of a rank: from the target's folder, or made up (--synthetic-weights). Ranks of a node
// that need the same read them once: the first reads and passes on what it has.
#pragma once
#include <optional>

#include "comm/node_broadcast.hpp"
#include "launch/rank.hpp"
#include "model/weight_stream.hpp"

namespace slip {

// What a load tells the heartbeat, and how it is shared; alive during the load.
class NodeLoad {
 public:
  // Collective over `comm` (null: one rank alone). `kind`: ranks that load the same say the same.
  NodeLoad(const Comm* comm, int kind, bool share_gpu, double timeout_s, Phases* phases, const Queue&);
  NodeLoad(const NodeLoad&) = delete;
  NodeLoad& operator=(const NodeLoad&) = delete;
  const LoadHooks& hooks() const { return hooks_; }
  void report() const;  // to the log, where another rank has read

 private:
  std::optional<NodeBroadcast> broadcast_;
  WeightSpread spread_;
  LoadHooks hooks_;
};

// Collective over the world where there is more than one rank: they all leave when all have loaded, so that
// no later wait for another rank is one for its disk. A plan that measures only is not collective.
template <class T>
TargetWeights<T> frozen_weights(const RunOptions&, const RunInputs&, const TargetParts&, const Ranks&, Arena&,
                                const Queue&);

}  // namespace slip
