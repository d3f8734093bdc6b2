// Host memory by MPI. Messages longer than `piece_bytes` travel in pieces, because MPI counts in int.
#pragma once
#include <cmath>
#include <memory>
#include <vector>

#include "comm/mpi.hpp"
#include "comm/transport.hpp"

namespace slip {

class MpiTransport : public Transport {
 public:
  // Takes the communicator: nobody else may send on it. Collective, like Comm::dup that makes it.
  explicit MpiTransport(Comm comm, int64_t piece_bytes = int64_t{1} << 30);
  ~MpiTransport() override;  // complains when something is still in flight

  Fence fence(const Queue&) override;  // the CPU queue runs at once: nothing to wait for
  Transfer post_send(int peer, const void* data, int64_t bytes, Fence after) override;
  Transfer post_recv(int peer, void* data, int64_t bytes, Fence after) override;
  bool test(Transfer) override;
  std::optional<double> seconds_after(Transfer, Fence) override { return std::nan(""); }
  int in_flight() const override { return in_flight_; }
  int world_rank(int peer) const override { return comm_.world_rank(peer); }
  const Peers& peers() const override { return comm_.peers(); }

 private:
  struct Operation {
    int64_t id = -1;  // -1: free
    std::vector<MPI_Request> pieces;
    int64_t last_bytes = 0;  // of the last piece, for a receive; -1: a send
    int peer = -1;
  };
  Operation& start(int peer);
  int next_tag(std::vector<int>& counters, int peer);

  Comm comm_;
  int64_t piece_bytes_;
  std::vector<Operation> operations_;  // reused
  std::vector<int> sent_, received_;   // messages so far, by peer: their tags
  int64_t serial_ = 0;
  int in_flight_ = 0;
};

}  // namespace slip
