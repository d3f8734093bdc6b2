#include "launch/phases.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <utility>

#include "comm/heartbeat.hpp"
#include "core/log.hpp"
#include "launch/signals.hpp"

namespace slip {

Phases::Phases(Heartbeat* heartbeat, int rank, const char* fault) : heartbeat_(heartbeat) {
  if (fault == nullptr) return;
  std::istringstream text(fault);
  std::string phase, step, on, action;
  std::getline(text, phase, ':');
  std::getline(text, step, ':');
  std::getline(text, on, ':');
  std::getline(text, action);
  if (action.empty()) fail_usage(fmt::format("SLIP_TEST_FAULT: '{}' is not PHASE:STEP:RANK:ACTION", fault));
  if (on != std::to_string(rank)) return;
  fault_phase_ = phase;
  fault_step_ = std::strtoll(step.c_str(), nullptr, 10);
  action_ = action;
}

void Phases::at(int64_t step, const char* phase) {
  step_ = step;
  if (heartbeat_ != nullptr) heartbeat_->set(step, phase);
  fault_point(step, phase);
}

bool Phases::fault_point(int64_t step, const std::string& place) {
  if (fault_phase_ != place || fault_step_ != step) return false;
  std::unique_lock lock(mutex_);
  const std::string action = std::exchange(action_, "");
  lock.unlock();
  if (action.empty()) return false;
  log_warn(fmt::format("test fault {} at step {} in phase {}, process {}", action, step, place, getpid()));
  if (action == "kill") std::raise(SIGKILL);
  if (action == "stop") std::raise(SIGSTOP);
  if (action == "abort") std::abort();
  if (action == "term") std::raise(SIGTERM);
  if (action == "usr1") std::raise(SIGUSR1);
  while (action == "pause" && !stop_signalled()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (action == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
  if (action.rfind("sleep=", 0) == 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(std::atof(action.c_str() + 6)));
  return action == "spoil";
}

}  // namespace slip
