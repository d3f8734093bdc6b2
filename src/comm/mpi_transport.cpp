#include "comm/mpi_transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "core/log.hpp"

namespace slip {
namespace {

constexpr int64_t kSlots = int64_t{1} << 16;  // operations at once; an id is serial * kSlots + index
constexpr int kTags = 1 << 14;                // MPI guarantees 32767

}  // namespace

void wait(Transport& transport, Transfer transfer, int peer, const Deadline& deadline,
          std::string_view what) {
  Wait waiting(transport.peers(), deadline, what, transport.world_rank(peer));
  while (!transport.test(transfer)) waiting.pause();
}

MpiTransport::MpiTransport(Comm comm, int64_t piece_bytes)
    : comm_(std::move(comm)), piece_bytes_(piece_bytes) {
  require(piece_bytes > 0 && piece_bytes < (int64_t{1} << 31), "MpiTransport: a piece must fit MPI's int");
  sent_.assign(static_cast<size_t>(comm_.size()), 0);
  received_ = sent_;
}

MpiTransport::~MpiTransport() {
  for (Operation& op : operations_) {
    if (op.id < 0 || op.last_bytes < 0) continue;
    for (MPI_Request& piece : op.pieces) drop_receive(piece);
  }
  if (in_flight_ == 0 || std::uncaught_exceptions() > 0) return;
  log_error(fmt::format("{} transfers were still under way when their transport ended", in_flight_));
}

Fence MpiTransport::fence(const Queue& queue) {
  require(queue.on_cpu(), "the MPI transport carries host memory only");
  return {};
}

MpiTransport::Operation& MpiTransport::start(int peer) {
  auto free =
      std::find_if(operations_.begin(), operations_.end(), [](const Operation& o) { return o.id < 0; });
  if (free == operations_.end()) {
    require(static_cast<int64_t>(operations_.size()) < kSlots, "MpiTransport: too many transfers at once");
    free = operations_.emplace(operations_.end());
  }
  free->id = serial_++ * kSlots + (free - operations_.begin());
  free->peer = peer;
  free->pieces.clear();
  ++in_flight_;
  return *free;
}

// The number of the message as its tag: a transfer out of order would be noticed as a hang, not as wrong
// features.
int MpiTransport::next_tag(std::vector<int>& counters, int peer) {
  int& n = counters.at(static_cast<size_t>(peer));
  n = (n + 1) % kTags;
  return n;
}

Transfer MpiTransport::post_send(int peer, const void* data, int64_t bytes, Fence) {
  const int tag = next_tag(sent_, peer);
  Operation& op = start(peer);
  op.last_bytes = -1;
  for (int64_t first = 0; first < bytes || op.pieces.empty(); first += piece_bytes_) {
    const int n = static_cast<int>(std::min(piece_bytes_, bytes - first));
    check_mpi(MPI_Isend(static_cast<const char*>(data) + first, n, MPI_BYTE, peer, tag, comm_.get(),
                        &op.pieces.emplace_back(MPI_REQUEST_NULL)));
  }
  return {op.id};
}

Transfer MpiTransport::post_recv(int peer, void* data, int64_t bytes, Fence) {
  const int tag = next_tag(received_, peer);
  Operation& op = start(peer);
  for (int64_t first = 0; first < bytes || op.pieces.empty(); first += piece_bytes_) {
    op.last_bytes = std::min(piece_bytes_, bytes - first);
    check_mpi(MPI_Irecv(static_cast<char*>(data) + first, static_cast<int>(op.last_bytes), MPI_BYTE, peer,
                        tag, comm_.get(), &op.pieces.emplace_back(MPI_REQUEST_NULL)));
  }
  return {op.id};
}

bool MpiTransport::test(Transfer transfer) {
  require(transfer.id >= 0, "MpiTransport: a transfer that was never posted");
  Operation& op = operations_.at(static_cast<size_t>(transfer.id % kSlots));
  if (op.id != transfer.id) return true;
  while (!op.pieces.empty()) {
    int done = 0;
    MPI_Status status;
    // The last piece first: its size tells whether both sides posted the same number of bytes.
    check_mpi(MPI_Test(&op.pieces.back(), &done, &status));
    if (!done) return false;
    if (op.last_bytes >= 0) {
      int got = 0;
      check_mpi(MPI_Get_count(&status, MPI_BYTE, &got));
      if (got != op.last_bytes) {
        fail_peer(fmt::format("{} sent a message that ends with {} bytes where {} were expected",
                              peers().name(world_rank(op.peer)), got, op.last_bytes));
      }
      op.last_bytes = piece_bytes_;
    }
    op.pieces.pop_back();
  }
  op.id = -1;
  --in_flight_;
  return true;
}

}  // namespace slip
