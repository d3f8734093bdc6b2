// Device memory by way of pinned host memory and MPI: for ranks that share a GPU, which NCCL refuses. A send
// copies to the host on its own stream and starts MPI's message when that is done; a receive copies to the
// device after it.
#pragma once
#include <cmath>
#include <deque>
#include <memory>

#include "comm/mpi_transport.hpp"
#include "device/buffer.hpp"
#include "device/cuda.hpp"

namespace slip {

class StagedTransport : public Transport {
 public:
  // Takes the communicator, as MpiTransport does. The current device is that of all transfers.
  explicit StagedTransport(Comm comm);

  Fence fence(const Queue&) override;
  Transfer post_send(int peer, const void* data, int64_t bytes, Fence after) override;
  Transfer post_recv(int peer, void* data, int64_t bytes, Fence after) override;
  bool test(Transfer) override;
  std::optional<double> seconds_after(Transfer, Fence) override { return std::nan(""); }
  int in_flight() const override { return static_cast<int>(operations_.size()) - free_; }
  int world_rank(int peer) const override { return mpi_.world_rank(peer); }
  const Peers& peers() const override { return mpi_.peers(); }

 private:
  enum class Stage { free, to_host, message, to_device };
  struct Operation {
    int64_t id = -1;
    Stage stage = Stage::free;
    bool send = false;
    int peer = -1;
    void* device = nullptr;
    int64_t bytes = 0;
    Buffer pinned;  // grows to the largest message it has carried, then stays
    Event copied = make_event();
    Transfer message;
  };
  Operation& start(int peer, void* device, int64_t bytes, bool send, Fence after);
  // MPI messages of a pair leave in the order of their posts: a send whose copy is done waits for those
  // before it.
  void start_messages();
  void advance(Operation&);

  MpiTransport mpi_;
  Stream stream_ = make_stream();
  std::deque<Operation> operations_;  // stable addresses; reused
  std::deque<Operation*> unsent_;     // sends whose message has not been started, in order
  std::deque<Event> fences_;          // by id
  int64_t serial_ = 0;
  int free_ = 0;
};

}  // namespace slip
