// Weights that no step changes: of the target, from its folder or made up (--synthetic-weights), and of a
// drafter that only decodes. Ranks of a node that need the same read them once: the first reads and passes on
// what it has.
#pragma once
#include <optional>

#include "comm/node_broadcast.hpp"
#include "launch/rank.hpp"
#include "model/drafter.hpp"
#include "model/weight_stream.hpp"

namespace slip {

// What a load tells the heartbeat, and how it is shared; alive during the load.
class NodeLoad {
 public:
  // Collective over `comm` (null: one rank alone). `kind`: ranks that load the same say the same; -1: loads
  // nothing.
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

// A published drafter, read once by the ranks of `load`. Returns when the weights are in place; the drafter's
// folder must have passed check_published.
template <class T>
void load_drafter(Drafter<T>&, const std::string& folder, const NodeLoad& load, const Queue&);

}  // namespace slip
