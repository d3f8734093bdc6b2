#include "comm/heartbeat.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <mutex>
#include <string_view>

#include "comm/heartbeat_wire.hpp"
#include "core/log.hpp"
#include "core/threads.hpp"

namespace slip {
namespace {

constexpr double kTick = 0.1;  // a closed connection is noticed at once, words within this many seconds

Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

struct Link {
  int rank, fd;
  bool left = false;    // it said bye, or is gone: nothing is expected of it any more
  std::string in, out;  // bytes of messages that are not whole yet; what the socket had no room for
  Clock::time_point heard = Clock::now();
  int64_t step = 0;  // where its last beat saw it
  std::string phase = "start";
};

template <size_t N> void put(char (&to)[N], std::string_view text) { text.substr(0, N - 1).copy(to, N - 1); }
template <size_t N> std::string get(const char (&from)[N]) { return std::string(from, strnlen(from, N)); }

}  // namespace

struct Heartbeat::State {
  enum Leaving { staying, well, failing };

  int rank;
  std::vector<std::string> hosts;
  HeartbeatTimes times;
  int wake = -1;

  std::atomic<uint64_t> progress = 0;
  std::atomic<bool> gone = false;
  std::atomic<int> leaving = staying;

  std::mutex mutex;  // for what both threads use: sending, and this rank's step and phase
  std::vector<Link> links;
  int64_t step = 0;
  const char* phase = "start";

  // the thread's own
  Clock::time_point born = Clock::now();  // it may begin late
  bool ending = false, said = false;
  bool stood_still = false;  // for so long that the others may have given this rank up
  std::string text;
  Clock::time_point end_at;

  ~State() {
    for (const Link& l : links) close(l.fd);
    close(wake);
  }
  void run();
  void say(Link&, const HeartbeatMessage&);
  void say_to_all(const HeartbeatMessage&);
  HeartbeatMessage here(Word);
  bool read(Link&);
  void take(Link&, const HeartbeatMessage&);
  void lost(Link&, const std::string& how);
  void learn(int who, int64_t at_step, const std::string& in_phase, const std::string& how);
  void end_after_grace() { ending = true, end_at = Clock::now() + seconds(times.grace_s); }
  void check_own_progress(double idle_s);
};

// With the lock held. A full socket keeps the words for later; nobody reads what is older than a few beats.
void Heartbeat::State::say(Link& l, const HeartbeatMessage& m) {
  if (l.out.size() < 64 * sizeof m) l.out.append(reinterpret_cast<const char*>(&m), sizeof m);
  const ssize_t n = send(l.fd, l.out.data(), l.out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n > 0) l.out.erase(0, static_cast<size_t>(n));
}

void Heartbeat::State::say_to_all(const HeartbeatMessage& m) {
  const std::lock_guard lock(mutex);
  for (Link& l : links) {
    if (!l.left) say(l, m);
  }
}

HeartbeatMessage Heartbeat::State::here(Word word) {
  HeartbeatMessage m{.word = word, .rank = rank, .step = step};
  put(m.phase, phase);
  return m;
}

// False: the connection is closed.
bool Heartbeat::State::read(Link& l) {
  char piece[8192];
  for (;;) {
    const ssize_t n = recv(l.fd, piece, sizeof piece, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (n <= 0) return false;
    l.in.append(piece, static_cast<size_t>(n));
    l.heard = Clock::now();
    size_t at = 0;
    for (HeartbeatMessage m; l.in.size() - at >= sizeof m; at += sizeof m) {
      std::memcpy(&m, l.in.data() + at, sizeof m);
      if (m.magic != HeartbeatMessage::kMagic) return false;
      take(l, m);
    }
    l.in.erase(0, at);
  }
}

void Heartbeat::State::take(Link& l, const HeartbeatMessage& m) {
  if (m.word == Word::beat) {
    l.step = m.step;
    l.phase = get(m.phase);
  } else if (m.word == Word::bye) {
    l.left = true;
  } else if (ending || m.rank < 0 || m.rank >= static_cast<int>(hosts.size())) {
    return;
  } else if (m.word == Word::failed) {
    if (rank == 0) {
      l.left = true;
      say_to_all(m);
    }
    said = true;  // by the one that failed; its exit code counts, so nobody here hurries
    end_after_grace();
  } else if (m.word == Word::gone) {
    learn(m.rank, m.step, get(m.phase), get(m.how));
  }
}

void Heartbeat::State::lost(Link& l, const std::string& how) {
  if (l.left) return;
  l.left = true;
  if (ending) return;
  if (rank == 0) {
    HeartbeatMessage m{.word = Word::gone, .rank = l.rank, .step = l.step};
    put(m.phase, l.phase);
    put(m.how, how);
    say_to_all(m);
  }
  learn(l.rank, l.step, l.phase, how);
}

void Heartbeat::State::learn(int who, int64_t at_step, const std::string& in_phase, const std::string& how) {
  text = fmt::format("rank {} on {} is gone, at step {} in phase {}: {}; all ranks end", who,
                     hosts[static_cast<size_t>(who)], at_step, in_phase, how);
  const bool mine = !stood_still && (rank == 0 || (who == 0 && rank == 1));
  said = mine || stood_still || who != 0;
  if (mine) {
    log_error(text);
  } else {
    if (rank != 0) log_info(text);  // to this rank's file
  }
  gone = said;  // else rank 1 says it, and this rank only if it still has to when the grace ends
  end_after_grace();
}

void Heartbeat::State::check_own_progress(double idle_s) {
  HeartbeatMessage m;
  {
    const std::lock_guard lock(mutex);
    m = here(Word::failed);
  }
  const std::string in_phase = get(m.phase);
  if (idle_s <= (in_phase == "exit" ? times.exit_s : times.stall_s)) return;
  say_to_all(m);
  log_error(
      fmt::format("rank {} on {} makes no progress since {:.0f} s, at step {} in phase {}; all ranks end",
                  rank, hosts[static_cast<size_t>(rank)], idle_s, m.step, in_phase));
  _exit(kPeerFailed);
}

void Heartbeat::State::run() {
  std::vector<pollfd> fds;
  Clock::time_point last = born, next_beat = last, progressed = last;
  uint64_t seen = progress;
  bool told = false;
  for (;;) {
    fds.assign(1, {.fd = wake, .events = POLLIN, .revents = 0});
    for (const Link& l : links) {
      if (!l.left) fds.push_back({.fd = l.fd, .events = POLLRDHUP, .revents = 0});
    }
    poll(fds.data(), fds.size(), static_cast<int>(1000 * std::min(kTick, times.beat_s / 4) + 1));
    const Clock::time_point now = Clock::now();
    const Clock::duration gap = now - last;
    last = now;
    if (gap > seconds(times.dead_after_s / 3)) {  // it was this process that stood still
      for (Link& l : links) l.heard += gap;
      progressed += gap;
      stood_still = true;
    }
    for (Link& l : links) {
      if (!l.left && !read(l)) lost(l, "its connection closed");
    }

    if (leaving == well) {
      say_to_all({.word = Word::bye, .rank = rank});
      return;
    }
    if (leaving == failing && !told) {
      told = true;
      uint64_t times_woken = 0;
      if (::read(wake, &times_woken, sizeof times_woken) < 0) log_error("heartbeat: woken by nobody");
      if (!ending) {
        said = true;
        end_after_grace();
      }
    }
    // The exit code of the one that failed comes first; soon after, nobody shall complain about waiting for
    // it.
    if (ending && said && now >= end_at - seconds(0.75 * times.grace_s)) gone = true;
    if (ending && now >= end_at) {
      if (!said) log_error(text);
      _exit(kPeerFailed);
    }
    if (now >= next_beat) {
      next_beat = now + seconds(times.beat_s);
      HeartbeatMessage m;
      {
        const std::lock_guard lock(mutex);
        m = here(Word::beat);
      }
      say_to_all(m);
    }
    if (ending) continue;
    for (Link& l : links) {
      const double silent = std::chrono::duration<double>(now - l.heard).count();
      if (silent > times.dead_after_s) lost(l, fmt::format("no sign of life for {:.0f} s", silent));
    }
    if (progress != seen) seen = progress, progressed = now;
    check_own_progress(std::chrono::duration<double>(now - progressed).count());
  }
}

Heartbeat::Heartbeat(int rank, std::vector<std::string> hosts, std::vector<HeartbeatLink> links,
                     const HeartbeatTimes& times)
    : state_(std::make_shared<State>()) {
  state_->rank = rank;
  state_->hosts = std::move(hosts);
  state_->times = times;
  for (const HeartbeatLink& l : links) state_->links.push_back({.rank = l.rank, .fd = l.fd});
  state_->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (state_->wake < 0) fail(fmt::format("heartbeat: {}", std::strerror(errno)));
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are the main thread's
  thread_ = start_thread("for signs of life", [state = state_] { state->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Heartbeat::~Heartbeat() {
  const bool failing = std::uncaught_exceptions() > 0;
  if (failing && !state_->gone) {  // now: the process may end before its thread wakes
    const std::lock_guard lock(state_->mutex);
    for (Link& l : state_->links) state_->say(l, state_->here(Word::failed));
  }
  state_->leaving = failing ? State::failing : State::well;
  const uint64_t one = 1;
  if (write(state_->wake, &one, sizeof one) != sizeof one) log_error("heartbeat: the thread would not wake");
  if (failing) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Heartbeat::set(int64_t step, const char* phase) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  s.progress += 1;
  if (s.step == step && std::string_view(phase) == s.phase) return;
  s.step = step;
  s.phase = phase;
  // At once, so that the word is on its way when the rank goes: to the one that would name it.
  if (!s.links.empty()) s.say(s.links.front(), s.here(Word::beat));
}

void Heartbeat::check() {
  state_->progress += 1;
  if (state_->gone) throw Error("", kPeerFailed, Where::current());
}

}  // namespace slip
