#include "comm/nccl_transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>

#include "core/log.hpp"
#include "device/buffer.hpp"

namespace slip {
namespace {
// Events in turn: a fence is used up by the posts that follow it at once, and asked for its time soon after.
constexpr int64_t kFences = 256, kEnded = 256;
}  // namespace

NcclTransport::NcclTransport(Comm comm, const std::vector<std::pair<int, int>>& pairs,
                             const Deadline& deadline, int blocks)
    : comm_(std::move(comm)) {
  for (int64_t i = 0; i < kFences; ++i) fences_.push_back({-1, make_timed_event()});
  Buffer byte(Place::device, 1);
  for (const auto& [a, b] : pairs) {
    const bool mine = comm_.rank() == a || comm_.rank() == b;
    const Comm two = comm_.split(mine ? 0 : -1, fmt::format("pair {}-{}", a, b), deadline);
    if (!mine) continue;
    const int peer = comm_.rank() == a ? b : a;
    pairs_.push_back({std::make_unique<NcclComm>(two, two.name(), deadline, blocks), make_urgent_stream(),
                      peer, two.rank() == 0 ? 1 : 0});
    const Transfer first =
        comm_.rank() == a ? post_send(peer, byte.data(), 1, {}) : post_recv(peer, byte.data(), 1, {});
    wait(*this, first, peer, deadline, "the first byte between two GPUs");
  }
}

NcclTransport::~NcclTransport() {
  if (operations_.empty() || std::uncaught_exceptions() > 0) return;
  log_error(fmt::format("{} transfers were still under way when their transport ended", operations_.size()));
}

Fence NcclTransport::fence(const Queue& queue) {
  const int64_t id = serial_++;
  Mark& fence = fences_[static_cast<size_t>(id % kFences)];
  fence.id = id;
  check(cudaEventRecord(fence.event.get(), queue.stream));
  return {id};
}

NcclTransport::Pair& NcclTransport::pair_with(int peer) {
  for (Pair& p : pairs_) {
    if (p.peer == peer) return p;
  }
  fail(fmt::format("no NCCL communicator with rank {}", peer));
}

Transfer NcclTransport::post(int peer, bool send, void* data, int64_t bytes, Fence after) {
  Pair& p = pair_with(peer);
  if (after.id >= 0)
    check(cudaStreamWaitEvent(p.stream.get(), fences_[static_cast<size_t>(after.id % kFences)].event.get()));
  const size_t count = static_cast<size_t>(bytes);
  check(send ? ncclSend(data, count, ncclInt8, p.partner, p.comm->get(), p.stream.get())
             : ncclRecv(data, count, ncclInt8, p.partner, p.comm->get(), p.stream.get()));
  p.comm->settle(deadline_in(60), "NCCL to take a transfer");
  Event done;
  if (spare_.empty()) {
    done = make_timed_event();
  } else {
    done = std::move(spare_.back());
    spare_.pop_back();
  }
  check(cudaEventRecord(done.get(), p.stream.get()));
  const int64_t id = serial_++;
  operations_.emplace(id, Operation{&p, std::move(done)});
  return {id};
}

Transfer NcclTransport::post_send(int peer, const void* data, int64_t bytes, Fence after) {
  return post(peer, true, const_cast<void*>(data), bytes, after);
}
Transfer NcclTransport::post_recv(int peer, void* data, int64_t bytes, Fence after) {
  return post(peer, false, data, bytes, after);
}

bool NcclTransport::test(Transfer transfer) {
  require(transfer.id >= 0, "NcclTransport: a transfer that was never posted");
  const auto it = operations_.find(transfer.id);
  if (it == operations_.end()) return true;
  const cudaError_t rc = cudaEventQuery(it->second.done.get());
  if (rc == cudaErrorNotReady) {
    cudaGetLastError();  // it is remembered and would fail the next launch check
    it->second.pair->comm->check_async();
    return false;
  }
  check(rc);
  ended_.emplace_back(it->first, std::move(it->second.done));
  operations_.erase(it);
  if (static_cast<int64_t>(ended_.size()) > kEnded) {
    spare_.push_back(std::move(ended_.front().second));
    ended_.pop_front();
  }
  return true;
}

std::optional<double> NcclTransport::seconds_after(Transfer transfer, Fence fence) {
  if (!test(transfer)) return std::nullopt;
  const Mark& mark = fences_[static_cast<size_t>(fence.id % kFences)];
  const auto ended =
      std::find_if(ended_.begin(), ended_.end(), [&](const auto& e) { return e.first == transfer.id; });
  if (ended == ended_.end() || mark.id != fence.id) return std::nan("");
  const cudaError_t rc = cudaEventQuery(mark.event.get());
  if (rc == cudaErrorNotReady) {
    cudaGetLastError();
    return std::nullopt;
  }
  check(rc);
  return seconds_between(mark.event, ended->second);
}

}  // namespace slip
