#include "launch/signals.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <initializer_list>

namespace slip {
namespace {
// All that a handler may touch: any thread may be the one that it interrupts.
std::atomic<bool> stop_flag = false;
std::atomic<int64_t> first_ns = 0;  // of SIGTERM or SIGINT; 0: none came
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

void on_signal(int number) {
  const int error = errno;  // of the call that it interrupts
  stop_flag = true;
  if (number == SIGUSR1) return;
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  const int64_t now = t.tv_sec * int64_t{1'000'000'000} + t.tv_nsec;
  int64_t before = 0;
  const bool again = !first_ns.compare_exchange_strong(before, now) && now - before >= 1'000'000'000;
  if (again) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
  errno = error;
}
}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int s : {SIGUSR1, SIGTERM, SIGINT}) sigaction(s, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);  // a file past its limit is an error of `write`, not a core dump
}
bool stop_signalled() { return stop_flag; }

}  // namespace slip
