// How the ranks find each other for heartbeats: rank 0 listens on every address it has, the others try them
// all at once and keep the one that answers with the cookie.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include "comm/collectives.hpp"
#include "comm/heartbeat.hpp"
#include "comm/heartbeat_wire.hpp"

namespace slip {
namespace {

struct Socket {
  int fd = -1;
  Socket() = default;
  explicit Socket(int f) : fd(f) {}
  ~Socket() { reset(); }
  Socket(Socket&& o) noexcept : fd(std::exchange(o.fd, -1)) {}
  Socket& operator=(Socket&& o) noexcept {
    reset();
    fd = std::exchange(o.fd, -1);
    return *this;
  }
  void reset() {
    if (fd >= 0) close(std::exchange(fd, -1));
  }
  int release() { return std::exchange(fd, -1); }
};

struct Greeting {  // a connection that has not said who it is, or has not been answered
  Socket socket;
  std::string in;
  bool greeted = false;
};

[[noreturn]] void fail_errno(const char* what) {
  fail(fmt::format("heartbeat: {}: {}", what, std::strerror(errno)));
}

// 1: a whole greeting with the cookie is there; 0: not yet; -1: no.
int read_greeting(Greeting& g, uint64_t cookie, HeartbeatMessage& m) {
  char piece[sizeof m];
  const ssize_t n = recv(g.socket.fd, piece, sizeof m - g.in.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  if (n <= 0) return -1;
  g.in.append(piece, static_cast<size_t>(n));
  if (g.in.size() < sizeof m) return 0;
  std::memcpy(&m, g.in.data(), sizeof m);
  const bool ours = m.magic == HeartbeatMessage::kMagic && m.word == Word::hello;
  return ours && m.step == static_cast<int64_t>(cookie) ? 1 : -1;
}

// A new connection has room for one message.
bool greet(int fd, uint64_t cookie, int rank) {
  const HeartbeatMessage m{.word = Word::hello, .rank = rank, .step = static_cast<int64_t>(cookie)};
  return ::send(fd, &m, sizeof m, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof m;
}

void prompt(int fd) {
  const int on = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) fail_errno("TCP_NODELAY");
}

// Numeric addresses of this host that others may reach; loopback last.
std::string own_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) fail_errno("the addresses of this host");
  std::string out, loopback;
  for (const ifaddrs* a = list; a != nullptr; a = a->ifa_next) {
    if (a->ifa_addr == nullptr || (a->ifa_flags & IFF_UP) == 0) continue;
    const int family = a->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char text[NI_MAXHOST] = {};
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(a->ifa_addr, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) continue;
    if (std::strchr(text, '%') != nullptr) continue;  // link-local: means something on this host only
    ((a->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : out) += std::string(text) + " ";
  }
  freeifaddrs(list);
  return out + loopback;
}

Greeting try_address(const std::string& address, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return {};
  Greeting g;
  g.socket = Socket(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (g.socket.fd >= 0 && connect(g.socket.fd, found->ai_addr, found->ai_addrlen) != 0 &&
      errno != EINPROGRESS)
    g.socket.reset();
  freeaddrinfo(found);
  return g;
}

std::string missing_ranks(const std::vector<HeartbeatLink>& here, const Peers& peers, int ranks) {
  std::string out;
  int missing = 0;
  for (int r = 1; r < ranks; ++r) {
    if (std::any_of(here.begin(), here.end(), [&](const HeartbeatLink& l) { return l.rank == r; })) continue;
    if (++missing <= 4) out += (missing > 1 ? ", " : "") + peers.name(r);
  }
  return missing > 4 ? fmt::format("{} and {} more", out, missing - 4) : out;
}

}  // namespace

HeartbeatDoor open_heartbeat_door(int ranks) {
  Socket s(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in6 six{};
  sockaddr_in four{};
  six.sin6_family = AF_INET6;
  four.sin_family = AF_INET;
  const int off = 0;  // IPv4 comes in by the same socket
  const bool both = s.fd >= 0 && setsockopt(s.fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0 &&
                    bind(s.fd, reinterpret_cast<sockaddr*>(&six), sizeof six) == 0;
  if (!both) {  // a host without IPv6
    s = Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (s.fd < 0 || bind(s.fd, reinterpret_cast<sockaddr*>(&four), sizeof four) != 0)
      fail_errno("a listening socket");
  }
  if (listen(s.fd, std::max(16, ranks)) != 0) fail_errno("a listening socket");
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (getsockname(s.fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) fail_errno("the port of a socket");
  const uint16_t port = both ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                             : reinterpret_cast<sockaddr_in*>(&bound)->sin_port;
  std::random_device random;
  const uint64_t cookie = uint64_t{random()} << 32 | random();
  return {s.release(), ntohs(port), cookie, own_addresses()};
}

std::vector<HeartbeatLink> admit_ranks(HeartbeatDoor& door, const Peers& peers, int ranks,
                                       const Deadline& deadline) {
  const Socket listening(std::exchange(door.fd, -1));
  std::vector<HeartbeatLink> here;
  std::vector<Greeting> guests;
  while (static_cast<int>(here.size()) + 1 < ranks) {
    if (Clock::now() > deadline.at) {
      for (const HeartbeatLink& l : here) close(l.fd);
      fail_peer(fmt::format(
          "heartbeat: {} did not connect to rank 0 in {:.0f} s (port {} at {}); if a firewall is between "
          "them, comm.heartbeat_s=0 runs without heartbeats",
          missing_ranks(here, peers, ranks), deadline.seconds, door.port, door.addresses));
    }
    const bool room = static_cast<int>(guests.size()) < ranks + 64;  // whoever else knocks here
    const int fd = room ? accept4(listening.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
    if (fd >= 0) guests.push_back({.socket = Socket(fd)});
    for (size_t i = 0; i < guests.size();) {
      HeartbeatMessage m;
      const int known = read_greeting(guests[i], door.cookie, m);
      if (known == 0) {
        ++i;
        continue;
      }
      const bool again =
          std::any_of(here.begin(), here.end(), [&](const HeartbeatLink& l) { return l.rank == m.rank; });
      if (known > 0 && m.rank > 0 && m.rank < ranks && !again && greet(guests[i].socket.fd, door.cookie, 0)) {
        prompt(guests[i].socket.fd);
        here.push_back({m.rank, guests[i].socket.release()});
      }
      guests.erase(guests.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (fd < 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::sort(here.begin(), here.end(),
            [](const HeartbeatLink& a, const HeartbeatLink& b) { return a.rank < b.rank; });
  return here;
}

HeartbeatLink knock(const HeartbeatDoor& door, int rank, const Deadline& deadline) {
  std::vector<Greeting> tries;
  std::istringstream addresses(door.addresses);
  for (std::string a; addresses >> a;) {
    Greeting g = try_address(a, door.port);
    if (g.socket.fd >= 0) tries.push_back(std::move(g));
  }
  while (!tries.empty() && Clock::now() < deadline.at) {
    for (size_t i = 0; i < tries.size();) {
      Greeting& g = tries[i];
      pollfd p{.fd = g.socket.fd, .events = static_cast<short>(g.greeted ? POLLIN : POLLOUT), .revents = 0};
      int state = 0;
      if (poll(&p, 1, 0) > 0) {
        HeartbeatMessage m;
        if (g.greeted) {
          state = read_greeting(g, door.cookie, m);
        } else {
          g.greeted = true;
          if (!greet(g.socket.fd, door.cookie, rank)) state = -1;
        }
      }
      if (state > 0) {
        prompt(g.socket.fd);
        return {0, g.socket.release()};
      }
      if (state < 0) {
        tries.erase(tries.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  fail_peer(fmt::format(
      "heartbeat: rank {} cannot reach rank 0 on port {} at {}; comm.heartbeat_s=0 runs without heartbeats",
      rank, door.port, door.addresses));
}

std::unique_ptr<Heartbeat> start_heartbeat(const MpiSession& mpi, const HeartbeatTimes& times) {
  if (mpi.size() == 1 || times.beat_s <= 0) return nullptr;
  struct Place {
    int64_t port;
    uint64_t cookie;
    char addresses[1024];
  } where{};
  constexpr const char* kWhat = "the connections of the heartbeat";
  const Deadline connected = deadline_in(times.dead_after_s), agreed = deadline_in(times.dead_after_s + 5);
  HeartbeatDoor door;
  if (mpi.rank() == 0) {
    door = open_heartbeat_door(mpi.size());
    where = {.port = door.port, .cookie = door.cookie};
    door.addresses.copy(where.addresses, sizeof where.addresses - 1);
  }
  broadcast(mpi.world(), 0, &where, sizeof where, agreed, kWhat);
  std::vector<HeartbeatLink> links;
  Verdict mine;
  try {
    if (mpi.rank() == 0) {
      links = admit_ranks(door, mpi.peers(), mpi.size(), connected);
    } else {
      links = {
          knock({-1, static_cast<int>(where.port), where.cookie, where.addresses}, mpi.rank(), connected)};
    }
  } catch (const Error& e) {
    mine = {e.exit_code(), e.what()};
  }
  const Verdict verdict = agree(mpi.world(), mine, agreed, kWhat);
  if (verdict.code == 0)
    return std::make_unique<Heartbeat>(mpi.rank(), mpi.peers().hosts, std::move(links), times);
  for (const HeartbeatLink& l : links) close(l.fd);
  throw Error(mpi.rank() == 0 ? verdict.message : "", verdict.code, Where::current());
}

}  // namespace slip
