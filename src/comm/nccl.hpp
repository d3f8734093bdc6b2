// NCCL communicators that cannot hang: created without blocking, every wait bounded and watched, aborted
// instead of destroyed while an exception is in flight. Only for builds with CUDA.
#pragma once
#include <nccl.h>

#include <memory>
#include <string>

#include "comm/mpi.hpp"
#include "device/cuda.hpp"

namespace slip {

void check(ncclResult_t rc, Where at = Where::current());  // with NCCL's own last error

class NcclComm {
 public:
  // Collective over `comm`; the current device is this rank's. `name` is for messages. `blocks`: thread
  // blocks of each operation, which hold as many multiprocessors while it runs or waits for its peer; 0:
  // NCCL's choice.
  NcclComm(const Comm& comm, const std::string& name, const Deadline&, int blocks = 0);
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  ncclComm_t get() const;  // fails when it was aborted
  void abort() noexcept;   // what is queued ends now, and peers see an error; nothing can be posted any more
  void check_async() const;  // fails when NCCL has seen an error, of a peer or its own
  // Waits until an operation that was posted has been taken by NCCL (non-blocking communicators answer "in
  // progress").
  void settle(const Deadline&, const char* what) const;
  // Waits for `done`, looking at the communicator and the peers meanwhile.
  void wait(const Event& done, const Deadline&, const char* what) const;

 private:
  NcclComm(const Peers& peers, const std::string& name) : peers_(peers), name_(name) {}

  const Peers& peers_;
  std::string name_;
  ncclComm_t comm_ = nullptr;
};

// Sum over the ranks, in place, in fp32; queued on `stream`.
void allreduce_sum(const NcclComm&, float* values, int64_t count, cudaStream_t stream, const Deadline&);

}  // namespace slip
