// Small host messages and sums over the ranks of a communicator, all bounded by a deadline. They are built
// from point-to-point messages, not from MPI's collectives, for two reasons: a rank that does not come is
// named, and sums are taken in rank order, so that they are the same bits on every rank and in every run. All
// ranks call them in the same order. `what` finishes the sentence "waiting for rank 3 on node07: ...".
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "comm/mpi.hpp"

namespace slip {

void barrier(const Comm&, const Deadline&, std::string_view what);
void broadcast(const Comm&, int root, void* data, int64_t bytes, const Deadline&, std::string_view what);
// all: size() * bytes, in rank order.
void allgather(const Comm&, const void* mine, int64_t bytes, void* all, const Deadline&,
               std::string_view what);

// Element-wise, in place. Floats are summed in double and rounded once. Any number of elements; scratch is
// bounded.
void allreduce_sum(const Comm&, std::span<double>, const Deadline&, std::string_view what);
void allreduce_sum(const Comm&, std::span<float>, const Deadline&, std::string_view what);
void allreduce_max(const Comm&, std::span<int64_t>, const Deadline&, std::string_view what);
bool any_rank(const Comm&, bool mine, const Deadline&, std::string_view what);

// What every rank leaves with when one of them found a reason not to begin: that of the lowest rank with a
// code.
struct Verdict {
  int code = 0;
  std::string message;
};
Verdict agree(const Comm&, const Verdict& mine, const Deadline&, std::string_view what);

// Messages between two ranks; tags 0..999 are the caller's. A message of another size is refused.
void send_bytes(const Comm&, int peer, int tag, const void*, int64_t bytes, const Deadline&,
                std::string_view what);
void recv_bytes(const Comm&, int peer, int tag, void*, int64_t bytes, const Deadline&, std::string_view what);
template <class T>
void send(const Comm& c, int peer, int tag, const T& value, const Deadline& d, std::string_view what) {
  static_assert(std::is_trivially_copyable_v<T>);
  send_bytes(c, peer, tag, &value, sizeof(T), d, what);
}
template <class T> T recv(const Comm& c, int peer, int tag, const Deadline& d, std::string_view what) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value{};
  recv_bytes(c, peer, tag, &value, sizeof(T), d, what);
  return value;
}

}  // namespace slip
