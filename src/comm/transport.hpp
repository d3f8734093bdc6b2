// Tensors between a pair of ranks. MPI carries host memory (mpi_transport.hpp); NCCL will carry device memory
// behind the same calls. The rules are those that both can keep:
//  * Between two ranks messages match in the order in which they are posted, each direction for itself; there
//  are no
//    tags. The receiver knows what comes next from a header sent another way (mailbox.hpp).
//  * Both sides post the same number of bytes.
//  * Posting never waits, for the peer or for a stream. The memory belongs to the transport until `test` says
//  done,
//    and what a device does after the host saw that is ordered behind the transfer.
//  * `after`: the transfer starts when what was queued at the time of the fence has run.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "comm/wait.hpp"
#include "device/queue.hpp"

namespace slip {

struct Fence {
  int64_t id = -1;  // -1: nothing to wait for
};
struct Transfer {
  int64_t id = -1;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual Fence fence(const Queue&) = 0;
  virtual Transfer post_send(int peer, const void* data, int64_t bytes, Fence after) = 0;
  virtual Transfer post_recv(int peer, void* data, int64_t bytes, Fence after) = 0;
  virtual bool test(Transfer) = 0;  // true from completion on, for ever; fails when the transfer did
  virtual int in_flight() const = 0;
  // Seconds by which a transfer ended after the fence's point, by the device's clock; negative: before it.
  // nullopt until both have passed; NaN where no clock tells, or when it was asked long after.
  virtual std::optional<double> seconds_after(Transfer, Fence) = 0;
  // The name of the peer, for messages; and how to wait for it.
  virtual int world_rank(int peer) const = 0;
  virtual const Peers& peers() const = 0;
};

// Tests until done. `peer` is the one of the post.
void wait(Transport&, Transfer, int peer, const Deadline&, std::string_view what);

}  // namespace slip
