#include "comm/staged_transport.hpp"

namespace slip {
namespace {

constexpr int64_t kFences = 64;  // events in turn; a fence is used up by the posts that follow it at once
constexpr int64_t kSlots = int64_t{1} << 16;  // operations at once; an id is serial * kSlots + index

bool passed(const Event& event) {
  const cudaError_t rc = cudaEventQuery(event.get());
  if (rc == cudaSuccess) return true;
  if (rc != cudaErrorNotReady) check(rc);
  cudaGetLastError();  // "not ready" is remembered and would fail the next launch check
  return false;
}

}  // namespace

StagedTransport::StagedTransport(Comm comm) : mpi_(std::move(comm)) {
  for (int64_t i = 0; i < kFences; ++i) fences_.push_back(make_event());
}

Fence StagedTransport::fence(const Queue& queue) {
  const int64_t id = serial_++;
  check(cudaEventRecord(fences_[static_cast<size_t>(id % kFences)].get(), queue.stream));
  return {id};
}

StagedTransport::Operation& StagedTransport::start(int peer, void* device, int64_t bytes, bool send,
                                                   Fence after) {
  size_t i = 0;
  while (i < operations_.size() && operations_[i].stage != Stage::free) ++i;
  if (i == operations_.size()) {
    require(static_cast<int64_t>(i) < kSlots, "StagedTransport: too many transfers at once");
    operations_.emplace_back();
  } else {
    --free_;
  }
  Operation& op = operations_[i];
  op.id = serial_++ * kSlots + static_cast<int64_t>(i);
  op.send = send;
  op.peer = peer;
  op.device = device;
  op.bytes = bytes;
  if (op.pinned.bytes() < bytes) op.pinned = Buffer(Place::pinned, bytes);
  if (after.id >= 0)
    check(cudaStreamWaitEvent(stream_.get(), fences_[static_cast<size_t>(after.id % kFences)].get()));
  return op;
}

Transfer StagedTransport::post_send(int peer, const void* data, int64_t bytes, Fence after) {
  Operation& op = start(peer, const_cast<void*>(data), bytes, true, after);
  op.stage = Stage::to_host;
  check(cudaMemcpyAsync(op.pinned.data(), data, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                        stream_.get()));
  check(cudaEventRecord(op.copied.get(), stream_.get()));
  unsent_.push_back(&op);
  return {op.id};
}

Transfer StagedTransport::post_recv(int peer, void* data, int64_t bytes, Fence after) {
  Operation& op = start(peer, data, bytes, false, after);
  op.stage = Stage::message;
  op.message = mpi_.post_recv(peer, op.pinned.data(), bytes, {});
  return {op.id};
}

void StagedTransport::start_messages() {
  while (!unsent_.empty() && passed(unsent_.front()->copied)) {
    Operation& op = *unsent_.front();
    op.message = mpi_.post_send(op.peer, op.pinned.data(), op.bytes, {});
    op.stage = Stage::message;
    unsent_.pop_front();
  }
}

void StagedTransport::advance(Operation& op) {
  if (op.stage == Stage::message && mpi_.test(op.message)) {
    if (op.send) {
      op.stage = Stage::free;
    } else {
      check(cudaMemcpyAsync(op.device, op.pinned.data(), static_cast<size_t>(op.bytes),
                            cudaMemcpyHostToDevice, stream_.get()));
      check(cudaEventRecord(op.copied.get(), stream_.get()));
      op.stage = Stage::to_device;
    }
  }
  if (op.stage == Stage::to_device && passed(op.copied)) op.stage = Stage::free;
  if (op.stage == Stage::free) ++free_, op.id = -1;
}

bool StagedTransport::test(Transfer transfer) {
  require(transfer.id >= 0, "StagedTransport: a transfer that was never posted");
  start_messages();
  Operation& op = operations_.at(static_cast<size_t>(transfer.id % kSlots));
  if (op.id == transfer.id) advance(op);
  return op.id != transfer.id;
}

}  // namespace slip
