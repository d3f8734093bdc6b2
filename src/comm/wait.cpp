#include "comm/wait.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "core/check.hpp"
#include "core/log.hpp"

namespace slip {

Deadline deadline_in(double seconds) {
  // A year is for ever; more would overflow the clock.
  const std::chrono::duration<double> length(std::clamp(seconds, 0.0, 3.2e7));
  return {Clock::now() + std::chrono::duration_cast<Clock::duration>(length), seconds};
}

std::string Peers::name(int r) const {
  if (r < 0) return "the other ranks";
  if (r >= static_cast<int>(hosts.size())) return fmt::format("rank {}", r);
  return fmt::format("rank {} on {}", r, hosts[static_cast<size_t>(r)]);
}

Wait::Wait(const Peers& peers, const Deadline& deadline, std::string_view what, int peer)
    : peers_(peers), deadline_(deadline), what_(what), peer_(peer) {}

void Wait::pause() {
  if (peers_.watch) peers_.watch();
  const double waited = seconds();
  if (Clock::now() > deadline_.at) {
    fail_peer(fmt::format("{} gave up after {:.1f} s of waiting for {}: {}", peers_.name(peers_.rank), waited,
                          peers_.name(peer_), what_));
  }
  if (waited > log_at_s_) {
    log_info(fmt::format("waiting for {} since {:.0f} s: {}", peers_.name(peer_), waited, what_));
    log_at_s_ = waited + log_again_s_;
  }
  ++round_;
  constexpr int kSpins = 50, kYields = 200;
  if (round_ <= kSpins) return;
  if (round_ <= kSpins + kYields) return std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::microseconds(std::min(200, 10 + (round_ - kSpins - kYields) * 2)));
}

void Wait::alive() {
  deadline_ = deadline_in(deadline_.seconds);
  round_ = 0;
}

}  // namespace slip
