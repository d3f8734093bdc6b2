// What a rank of a run is given, and the one loop of each role.
#pragma once
#include "comm/mailbox.hpp"
#include "comm/mpi.hpp"
#include "comm/transport.hpp"
#include "launch/inputs.hpp"
#include "launch/phases.hpp"
#include "launch/plan.hpp"
#include "model/synthetic.hpp"
#include "model/target.hpp"
#if SLIP_HAVE_CUDA
#include "comm/nccl.hpp"
#endif

namespace slip {

class TrainingDump;

struct Ranks {
  const MpiSession* mpi = nullptr;  // null: this process alone
  Phases* phases = nullptr;         // null: nobody asks
  TrainingDump* dump = nullptr;     // null: none
  Comm control;                     // requests and headers of the mailbox
  Comm drafters;                    // gradient and metric sums; none on a target rank
  Comm decoders;                    // drafter 0 and the targets, where prompts are decoded (eval.prompts)
  std::unique_ptr<Transport> transport;
  bool share_gpu = false;  // ranks share a GPU: NCCL would refuse
#if SLIP_HAVE_CUDA
  std::unique_ptr<NcclComm> gradients, last_gradients;  // over the drafters, when each has its own GPU
#endif
  void at(int64_t step, const char* phase) const {
    if (phases != nullptr) phases->at(step, phase);
  }
  int drafter_index() const { return drafters ? drafters.rank() : 0; }
  int drafter_count() const { return drafters ? drafters.size() : 1; }
};

inline FeatureShape feature_shape(const RunOptions& o, const RunInputs& in) {
  return {static_cast<int>(in.drafter.taps.size()), o.config.data.row_tokens, in.target.hidden};
}

// The target with room for rows of data.row_tokens tokens, and with the attention that target.attention
// names.
template <class T>
Target<T> make_target(const RunOptions&, const RunInputs&, TargetWeights<T>, Arena&, const Queue&);

// Memory of each role by name, as the loops take it.
template <class T> std::vector<Arena::Entry> target_memory(const RunOptions&, const RunInputs&, const Plan&);
template <class T> std::vector<Arena::Entry> drafter_memory(const RunOptions&, const RunInputs&, const Plan&);

// Serves rows until every drafter is done.
template <class T> void run_target(const RunOptions&, const RunInputs&, const Plan&, Ranks&, const Queue&);
// `target_forward` that leaves the taps in host memory, [tokens][taps][hidden]: what a dump keeps. `tap`:
// (tokens, hidden) where the queue's memory is, overwritten by each tap in turn.
template <class T>
void capture_to_host(const Target<T>& target, const Packed& packed, const std::vector<int64_t>& taps,
                     Bf16* tap, Bf16* host, const Queue& queue) {
  const int64_t h = target.model.hidden, width = h * static_cast<int64_t>(taps.size());
  const auto leave = [&](int i, View2<const T>) {
    copy_rows_to_host(host + i * h, width * 2, tap, h * 2, h * 2, packed.tokens, queue);
  };
  target_forward<T>(target, packed, taps, queue, leave, [&](int) { return tap; });
}

// Trains. Returns 0, or kStopped when it was asked to stop and has saved.
template <class T> int run_drafter(const RunOptions&, const RunInputs&, const Plan&, Ranks&, const Queue&);

}  // namespace slip
