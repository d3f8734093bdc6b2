#include "comm/collectives.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/comm_state.hpp"

namespace slip {
namespace {

enum Tag : int { kGather = 1001, kSpread, kReduce, kReduced };  // MPI keeps the order of a pair and tag

constexpr int64_t kPieceBytes = int64_t{1} << 30;   // of one message: MPI counts in int
constexpr int64_t kReduceBytes = int64_t{4} << 20;  // of a reduction under way: bounds its scratch
constexpr int64_t kSmallBytes = int64_t{32} << 10;  // up to here rank 0 sums for all: two hops, few messages

// The call that every operation here serves.
struct Call {
  const Comm& comm;
  const Deadline& deadline;
  std::string_view what;
  int rank() const { return comm.rank(); }
  int size() const { return comm.size(); }
};

// Messages with one or several peers. Receives are taken back when an error ends the wait: their memory goes.
class Round {
 public:
  explicit Round(const Call& call) : call_(call) {}
  ~Round() {
    for (Item& i : items_) {
      if (i.receives) drop_receive(i.request);
    }
  }
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

  void send(int peer, int tag, const void* data, int64_t bytes) {
    Item& i = items_.emplace_back(Item{MPI_REQUEST_NULL, peer, bytes, false});
    check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, call_.comm.get(), &i.request));
  }
  void recv(int peer, int tag, void* data, int64_t bytes) {
    Item& i = items_.emplace_back(Item{MPI_REQUEST_NULL, peer, bytes, true});
    check_mpi(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, call_.comm.get(), &i.request));
  }
  void finish() {
    for (Item& i : items_) finish(i);
  }

 private:
  struct Item {
    MPI_Request request;
    int peer;
    int64_t bytes;
    bool receives;
  };
  void finish(Item& i) {
    const Peers& peers = call_.comm.peers();
    const int peer = call_.comm.world_rank(i.peer);
    Wait waiting(peers, call_.deadline, call_.what, peer);
    MPI_Status status;
    for (int done = 0;;) {
      check_mpi(MPI_Test(&i.request, &done, &status));
      if (done) break;
      waiting.pause();
    }
    if (!i.receives) return;
    int got = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &got));
    if (got == i.bytes) return;
    // The two ranks are not at the same call.
    fail(fmt::format("{}: {} sent {} bytes where {} were expected", call_.what, peers.name(peer), got,
                     i.bytes));
  }

  Call call_;
  std::vector<Item> items_;
};

char* scratch(const Call& c, int64_t bytes) {
  std::vector<char>& s = c.comm.state().scratch;
  if (static_cast<int64_t>(s.size()) < bytes) s.resize(static_cast<size_t>(bytes));
  return s.data();
}

// Every rank's `bytes` to rank 0, at all + r * bytes there; its own part is not copied.
void gather(const Call& c, const void* mine, int64_t bytes, char* all) {
  Round round(c);
  if (c.rank() != 0) round.send(0, kGather, mine, bytes);
  for (int r = 1; r < c.size() && c.rank() == 0; ++r) round.recv(r, kGather, all + r * bytes, bytes);
  round.finish();
}

void spread(const Call& c, int root, void* data, int64_t bytes) {
  Round round(c);
  if (c.rank() != root) round.recv(root, kSpread, data, bytes);
  for (int r = 0; r < c.size() && c.rank() == root; ++r) {
    if (r != root) round.send(r, kSpread, data, bytes);
  }
  round.finish();
}

struct Sum {
  using Wide = double;
  static double join(double a, double b) { return a + b; }
};
struct Max {
  using Wide = int64_t;
  static int64_t join(int64_t a, int64_t b) { return std::max(a, b); }
};

// out[i] = parts[0][i] op parts[1][i] op ..., in that order; out may be one of the parts.
template <class Op, class T> void join(const std::vector<const T*>& parts, int64_t count, T* out) {
  constexpr int64_t kBlock = 1024;
  typename Op::Wide acc[kBlock];
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t n = std::min(kBlock, count - first);
    for (int64_t i = 0; i < n; ++i) acc[i] = parts[0][first + i];
    for (size_t p = 1; p < parts.size(); ++p) {
      const T* part = parts[p] + first;
      for (int64_t i = 0; i < n; ++i) acc[i] = Op::join(acc[i], part[i]);
    }
    for (int64_t i = 0; i < n; ++i) out[first + i] = static_cast<T>(acc[i]);
  }
}

template <class Op, class T> void reduce_at_root(const Call& c, T* data, int64_t count) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
  char* all = c.rank() == 0 ? scratch(c, bytes * c.size()) : nullptr;
  gather(c, data, bytes, all);
  if (c.rank() == 0) {
    std::vector<const T*> parts{data};
    for (int r = 1; r < c.size(); ++r) parts.push_back(reinterpret_cast<const T*>(all + r * bytes));
    join<Op>(parts, count, data);
  }
  spread(c, 0, data, bytes);
}

// Rank r sums slice r of the piece and sends the sum to all: each rank sends and receives 2 (n-1)/n of the
// piece.
template <class Op, class T> void reduce_in_slices(const Call& c, T* data, int64_t count) {
  const int n = c.size(), me = c.rank();
  const auto begin = [&](int r) { return count * r / n; };
  const auto bytes = [&](int r) { return (begin(r + 1) - begin(r)) * static_cast<int64_t>(sizeof(T)); };
  T* incoming = reinterpret_cast<T*>(scratch(c, bytes(me) * n));
  const int64_t mine = begin(me + 1) - begin(me);
  Round out(c);
  for (int k = 1; k < n; ++k) {  // not all at the same rank at once
    const int from = (me + n - k) % n, to = (me + k) % n;
    out.recv(from, kReduce, incoming + from * mine, bytes(me));
    out.send(to, kReduce, data + begin(to), bytes(to));
  }
  out.finish();
  std::vector<const T*> parts;
  for (int r = 0; r < n; ++r) parts.push_back(r == me ? data + begin(me) : incoming + r * mine);
  join<Op>(parts, mine, data + begin(me));
  Round back(c);
  for (int k = 1; k < n; ++k) {
    const int from = (me + n - k) % n, to = (me + k) % n;
    back.recv(from, kReduced, data + begin(from), bytes(from));
    back.send(to, kReduced, data + begin(me), bytes(me));
  }
  back.finish();
}

template <class Op, class T> void allreduce(const Call& c, std::span<T> data) {
  if (c.size() == 1) return;
  const auto count = static_cast<int64_t>(data.size());
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  if (count * kSize <= kSmallBytes) return reduce_at_root<Op>(c, data.data(), count);
  for (int64_t first = 0; first < count; first += kReduceBytes / kSize) {
    reduce_in_slices<Op>(c, data.data() + first, std::min(kReduceBytes / kSize, count - first));
  }
}

}  // namespace

void barrier(const Comm& comm, const Deadline& deadline, std::string_view what) {
  const Call c{comm, deadline, what};
  gather(c, nullptr, 0, nullptr);
  spread(c, 0, nullptr, 0);
}

void broadcast(const Comm& comm, int root, void* data, int64_t bytes, const Deadline& deadline,
               std::string_view what) {
  const Call c{comm, deadline, what};
  for (int64_t first = 0; first < bytes; first += kPieceBytes) {
    spread(c, root, static_cast<char*>(data) + first, std::min(kPieceBytes, bytes - first));
  }
}

void allgather(const Comm& comm, const void* mine, int64_t bytes, void* all, const Deadline& deadline,
               std::string_view what) {
  const Call c{comm, deadline, what};
  require(bytes <= kPieceBytes, "allgather: more than 1 GiB a rank");
  gather(c, mine, bytes, static_cast<char*>(all));
  if (c.rank() == 0) std::memcpy(all, mine, static_cast<size_t>(bytes));
  broadcast(comm, 0, all, bytes * comm.size(), deadline, what);
}

void allreduce_sum(const Comm& c, std::span<double> data, const Deadline& d, std::string_view what) {
  allreduce<Sum>({c, d, what}, data);
}
void allreduce_sum(const Comm& c, std::span<float> data, const Deadline& d, std::string_view what) {
  allreduce<Sum>({c, d, what}, data);
}
void allreduce_max(const Comm& c, std::span<int64_t> data, const Deadline& d, std::string_view what) {
  allreduce<Max>({c, d, what}, data);
}

bool any_rank(const Comm& c, bool mine, const Deadline& d, std::string_view what) {
  int64_t flag = mine ? 1 : 0;
  allreduce_max(c, {&flag, 1}, d, what);
  return flag != 0;
}

Verdict agree(const Comm& comm, const Verdict& mine, const Deadline& d, std::string_view what) {
  int64_t first[2] = {mine.code != 0 ? comm.size() - comm.rank() : 0, 0};  // the largest is the lowest rank
  allreduce_max(comm, {first, 1}, d, what);
  if (first[0] == 0) return {};
  const int root = comm.size() - static_cast<int>(first[0]);
  int64_t head[2] = {mine.code, static_cast<int64_t>(mine.message.size())};
  broadcast(comm, root, head, sizeof head, d, what);
  Verdict verdict{static_cast<int>(head[0]), mine.message};
  verdict.message.resize(static_cast<size_t>(head[1]));
  broadcast(comm, root, verdict.message.data(), head[1], d, what);
  return verdict;
}

void send_bytes(const Comm& comm, int peer, int tag, const void* data, int64_t bytes,
                const Deadline& deadline, std::string_view what) {
  require(tag >= 0 && tag < 1000 && bytes <= kPieceBytes, "send_bytes: tag or size out of range");
  const Call c{comm, deadline, what};
  Round round(c);
  round.send(peer, tag, data, bytes);
  round.finish();
}

void recv_bytes(const Comm& comm, int peer, int tag, void* data, int64_t bytes, const Deadline& deadline,
                std::string_view what) {
  require(tag >= 0 && tag < 1000 && bytes <= kPieceBytes, "recv_bytes: tag or size out of range");
  const Call c{comm, deadline, what};
  Round round(c);
  round.recv(peer, tag, data, bytes);
  round.finish();
}

}  // namespace slip
