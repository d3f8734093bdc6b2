// Device memory by NCCL: one communicator and one stream for each pair of ranks, so that a slow pair holds up
// no other and what is posted between two ranks runs in the order of the posts.
#pragma once
#include <deque>
#include <map>
#include <memory>

#include "comm/nccl.hpp"
#include "comm/transport.hpp"

namespace slip {

class NcclTransport : public Transport {
 public:
  // Collective over `comm`: makes a communicator for each pair of `pairs` (ranks of comm, the same list on
  // every rank, in the same order), and lets each pair exchange one byte, so that no later post waits for a
  // connection. `blocks`: of each transfer, as NcclComm says; a receive holds them from its post on.
  NcclTransport(Comm comm, const std::vector<std::pair<int, int>>& pairs, const Deadline&, int blocks = 0);
  ~NcclTransport() override;

  Fence fence(const Queue&) override;
  Transfer post_send(int peer, const void* data, int64_t bytes, Fence after) override;
  Transfer post_recv(int peer, void* data, int64_t bytes, Fence after) override;
  bool test(Transfer) override;
  std::optional<double> seconds_after(Transfer, Fence) override;
  int in_flight() const override { return static_cast<int>(operations_.size()); }
  int world_rank(int peer) const override { return comm_.world_rank(peer); }
  const Peers& peers() const override { return comm_.peers(); }

 private:
  struct Pair {
    std::unique_ptr<NcclComm> comm;
    Stream stream;
    int peer;     // this rank's partner, as a rank of `comm_`
    int partner;  // the partner's rank in the pair's communicator: 0 or 1
  };
  struct Operation {
    Pair* pair;
    Event done;
  };
  struct Mark {
    int64_t id = -1;
    Event event;
  };
  Pair& pair_with(int peer);
  Transfer post(int peer, bool send, void* data, int64_t bytes, Fence after);

  Comm comm_;
  std::deque<Pair> pairs_;
  std::map<int64_t, Operation> operations_;      // by id
  std::deque<std::pair<int64_t, Event>> ended_;  // the last of them, by id: they keep the time
  std::vector<Event> spare_;                     // events of those before
  std::vector<Mark> fences_;                     // in turn
  int64_t serial_ = 0;
};

}  // namespace slip
