#include "comm/nccl.hpp"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "comm/collectives.hpp"
#include "core/log.hpp"

namespace slip {

void check(ncclResult_t rc, Where at) {
  if (rc == ncclSuccess || rc == ncclInProgress) return;
  fail_peer(fmt::format("NCCL: {}: {}", ncclGetErrorString(rc), ncclGetLastError(nullptr)), at);
}

NcclComm::NcclComm(const Comm& comm, const std::string& name, const Deadline& deadline, int blocks)
    : NcclComm(comm.peers(), name) {  // delegates: when this fails, the destructor runs
  ncclUniqueId id{};
  if (comm.rank() == 0) check(ncclGetUniqueId(&id));
  broadcast(comm, 0, &id, sizeof id, deadline, "the id of a NCCL communicator");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (blocks > 0) config.minCTAs = config.maxCTAs = blocks;
  check(ncclCommInitRankConfig(&comm_, comm.size(), id, comm.rank(), &config));
  settle(deadline, "a NCCL communicator to start");
}

NcclComm::~NcclComm() {
  if (comm_ == nullptr) return;
  // Destroying waits for the peers; with an exception in flight they may be gone.
  if (std::uncaught_exceptions() > 0) {
    abort();
    return;
  }
  ncclCommFinalize(comm_);
  ncclResult_t state = ncclInProgress;
  const Deadline deadline = deadline_in(30);
  while (state == ncclInProgress && Clock::now() < deadline.at) ncclCommGetAsyncError(comm_, &state);
  if (state == ncclSuccess) {
    ncclCommDestroy(comm_);
  } else {
    log_warn(fmt::format("NCCL communicator {} would not end: aborted", name_));
    abort();
  }
}

ncclComm_t NcclComm::get() const {
  if (comm_ == nullptr) fail_peer(fmt::format("the NCCL communicator {} was aborted", name_));
  return comm_;
}

void NcclComm::abort() noexcept {
  if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
}

void NcclComm::check_async() const {
  ncclResult_t state = ncclSuccess;
  check(ncclCommGetAsyncError(get(), &state));
  check(state);
}

void NcclComm::settle(const Deadline& deadline, const char* what) const {
  Wait waiting(peers_, deadline, what, -1);
  for (;;) {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(get(), &state));
    if (state == ncclSuccess) return;
    check(state);
    waiting.pause();
  }
}

void NcclComm::wait(const Event& done, const Deadline& deadline, const char* what) const {
  Wait waiting(peers_, deadline, what, -1);
  for (;;) {
    const cudaError_t rc = cudaEventQuery(done.get());
    if (rc == cudaSuccess) return;
    if (rc != cudaErrorNotReady) check(rc);
    cudaGetLastError();  // "not ready" is remembered and would fail the next launch check
    check_async();
    waiting.pause();
  }
}

void allreduce_sum(const NcclComm& comm, float* values, int64_t count, cudaStream_t stream,
                   const Deadline& deadline) {
  check(ncclAllReduce(values, values, static_cast<size_t>(count), ncclFloat, ncclSum, comm.get(), stream));
  comm.settle(deadline, "NCCL to take a gradient sum");
}

}  // namespace slip
