#include "comm/node_broadcast.hpp"

#include "comm/collectives.hpp"

namespace slip {
namespace {
constexpr const char* kWhat = "weights that one rank of the node reads";
#if SLIP_HAVE_CUDA
constexpr size_t kUnderWay = 8;
#endif
}  // namespace

NodeBroadcast::NodeBroadcast(Comm group, bool nccl, double timeout_s, const Queue& queue)
    : group_(std::move(group)), timeout_s_(timeout_s), queue_(queue) {
#if SLIP_HAVE_CUDA
  if (!nccl) return;
  nccl_ = std::make_unique<NcclComm>(group_, group_.name(), deadline_in(timeout_s));
  stream_ = make_stream();
  for (size_t i = 0; i < kUnderWay; ++i) passed_.push_back(make_event());
#else
  require(!nccl, "NodeBroadcast: this build has no CUDA");
#endif
}

#if SLIP_HAVE_CUDA
void NodeBroadcast::wait_for(const Event& event) { nccl_->wait(event, deadline_in(timeout_s_), kWhat); }
#endif

void NodeBroadcast::pass(void* data, int64_t bytes) {
  bytes_ += bytes;
#if SLIP_HAVE_CUDA
  if (nccl_) {
    const Event& turn = passed_[static_cast<size_t>(pieces_++) % kUnderWay];
    wait_for(turn);  // of the piece that took this turn before; at once when there was none
    check(ncclBroadcast(data, data, static_cast<size_t>(bytes), ncclInt8, 0, nccl_->get(), stream_.get()));
    nccl_->settle(deadline_in(timeout_s_), kWhat);
    check(cudaEventRecord(turn.get(), stream_.get()));
    return;
  }
  if (!queue_.on_cpu()) {
    if (host_.bytes() < bytes) host_ = Buffer(Place::pinned, bytes);
    if (root()) copy_to_host(host_.data(), data, bytes, queue_);
    synchronize(queue_);  // the copy, or that of the piece before
    broadcast(group_, 0, host_.data(), bytes, deadline_in(timeout_s_), kWhat);
    if (!root()) copy_to_device(data, host_.data(), bytes, queue_);
    return;
  }
#endif
  broadcast(group_, 0, data, bytes, deadline_in(timeout_s_), kWhat);
}

void NodeBroadcast::finish() {
#if SLIP_HAVE_CUDA
  for (const Event& e : passed_) wait_for(e);
#endif
  synchronize(queue_);
}

Comm split_by_node(const Comm& comm, int kind, const std::string& name, const Deadline& deadline) {
  const std::vector<std::string>& hosts = comm.peers().hosts;
  const auto host = [&](int rank) { return hosts.at(static_cast<size_t>(comm.world_rank(rank))); };
  int first = 0;
  while (host(first) != host(comm.rank())) ++first;
  return comm.split(kind < 0 ? -1 : kind * comm.size() + first, name, deadline);
}

}  // namespace slip
