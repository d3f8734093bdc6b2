#include "launch/signals.hpp"

#include <csignal>
#include <initializer_list>

namespace slip {
namespace {
volatile std::sig_atomic_t stop_flag = 0;  // the one thing a handler may touch
void on_signal(int) { stop_flag = 1; }
}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int s : {SIGUSR1, SIGTERM, SIGINT}) sigaction(s, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);  // a file past its limit is an error of `write`, not a core dump
}
bool stop_signalled() { return stop_flag != 0; }

}  // namespace slip
