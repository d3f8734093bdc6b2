// Bytes from the first rank of a group to its others, piece by piece: weights that the ranks of a node read
// once. By NCCL on GPUs of their own; else by MPI, through host memory where the queue's is a GPU's.
#pragma once
#include <memory>
#include <vector>

#include "comm/mpi.hpp"
#include "device/queue.hpp"
#if SLIP_HAVE_CUDA
#include "comm/nccl.hpp"
#include "device/buffer.hpp"
#endif

namespace slip {

class NodeBroadcast {
 public:
  // Collective over `group`. Every wait of `pass` and `finish` is bounded by timeout_s and watched.
  NodeBroadcast(Comm group, bool nccl, double timeout_s, const Queue&);
  bool root() const { return group_.rank() == 0; }
  // All ranks call it for as many bytes in the same order. `data` lies where the queue's memory is, filled at
  // the root; it is in use until `finish`.
  void pass(void* data, int64_t bytes);
  void finish();
  int64_t bytes() const { return bytes_; }  // passed so far
  std::string reader() const { return group_.peers().name(group_.world_rank(0)); }

 private:
  Comm group_;
  double timeout_s_;
  Queue queue_;
  int64_t bytes_ = 0;
#if SLIP_HAVE_CUDA
  void wait_for(const Event&);

  std::unique_ptr<NcclComm> nccl_;
  Stream stream_;
  std::vector<Event> passed_;  // in turn: so many pieces are under way at most
  int64_t pieces_ = 0;
  Buffer host_;  // grows to the largest piece
#endif
};

// The ranks of `comm` on this rank's host that say the same `kind` (0 or more; -1: joins none).
Comm split_by_node(const Comm& comm, int kind, const std::string& name, const Deadline&);

}  // namespace slip
