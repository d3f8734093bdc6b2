// What this rank is doing: told to the heartbeat, so that the others can say where it was when it went. And
// where tests break a rank: SLIP_TEST_FAULT=PHASE:STEP:RANK:ACTION, read by `train` for tests alone, makes
// that rank do ACTION when it first comes to that step and phase: kill, stop, abort, term, usr1, hang (the
// main thread alone stands still), sleep=SECONDS, pause (until a signal asks this rank to stop) or spoil.
#pragma once
#include <cstdint>
#include <mutex>
#include <string>

namespace slip {

class Heartbeat;

class Phases {
 public:
  Phases(Heartbeat*, int rank, const char* fault);  // each may be null
  // start, load, wait, capture, transfer, train, reduce, evaluate, decode, save, exit. The step is the one
  // that is being made; while saving or evaluating, the last one made.
  void at(int64_t step, const char* phase);
  // A place within a phase, for tests alone: save/drafter, save/optimizer, save/trainer, save/manifest,
  // save/rename; load/read; replay. Any thread may say it. True (the action is spoil): the caller shall
  // compute something wrong.
  bool fault_point(int64_t step, const std::string& place);
  bool fault_point_here(const std::string& place) { return fault_point(step_, place); }
  void at_same_step(const char* phase) { at(step_, phase); }

 private:
  Heartbeat* heartbeat_;
  int64_t step_ = 0, fault_step_ = 0;
  std::string fault_phase_;
  std::mutex mutex_;
  std::string action_;  // under mutex_
};

}  // namespace slip
