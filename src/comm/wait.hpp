// Deadlines, and the one loop in which a rank waits for another. No wait of the program is unbounded; each
// names what it waits for. No MPI here.
#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace slip {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

struct Deadline {
  Clock::time_point at;
  double seconds;  // its length, for the message
};
Deadline deadline_in(double seconds);

// Who the ranks are, and what a waiting rank does meanwhile. One a process, owned by MpiSession.
struct Peers {
  int rank = 0;
  std::vector<std::string> hosts;    // by world rank
  std::function<void()> watch;       // called in every wait loop; throws when a peer is known to be dead
  std::string name(int rank) const;  // "rank 3 on node07"; of -1: "the other ranks"
};

// One wait: the caller tests, and calls `pause` while there is nothing. A pause calls `watch`, logs after 5 s
// and then every 10 s, fails with exit code 4 at the deadline, and backs off: spins, yields, then sleeps up
// to 0.2 ms, because ranks may share cores. `what` must outlive the wait.
class Wait {
 public:
  Wait(const Peers& peers, const Deadline& deadline, std::string_view what,
       int peer);  // peer: world rank or -1
  void pause();
  void alive();                             // a sign of life: the deadline starts anew
  void log_once() { log_again_s_ = 1e30; }  // no reminders after the first line
  double seconds() const { return seconds_since(start_); }

 private:
  const Peers& peers_;
  Deadline deadline_;
  std::string_view what_;
  int peer_;
  Clock::time_point start_ = Clock::now();
  double log_at_s_ = 5, log_again_s_ = 10;
  int round_ = 0;
};

}  // namespace slip
