// Who is alive. One thread a process, sockets of its own, no MPI and no NCCL: it goes on while the main
// thread is in a kernel, in a blocking call or in MPI_Finalize. Rules:
//
//  * Every rank has one connection to rank 0. Both ends send a beat every `beat_s`; a beat carries the
//  sender's
//    step and phase, so that the others know what it was doing when it went.
//  * A rank is gone when its connection closes without a word (killed, aborted: at once) or when nothing was
//  heard
//    of it for `dead_after_s` (stopped, its machine gone). Rank 0 tells the others; of rank 0 each learns by
//    itself.
//  * A rank whose main thread shows no progress for `stall_s` (no phase, no `wait`; for `exit_s` in phase
//  "exit")
//    gives itself up.
//  * One line names rank, host, step and phase of the first that went: rank 0 says it; when it is rank 0,
//  rank 1;
//    any other rank only when it is still there after the grace. The log files of all ranks have it.
//  * From then on `check`, which every wait calls, throws with exit code 4 and without a message: it was
//  said. A
//    process that is still there `grace_s` later ends by _exit(4).
//  * A rank that fails says so itself and tells the others that it did: they leave without a line of their
//  own.
//  * A thread that was itself stopped (a debugger, a frozen machine) does not blame the others for the gap.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi.hpp"

namespace slip {

struct HeartbeatTimes {
  double beat_s = 1, dead_after_s = 15;
  double stall_s = 600, exit_s = 20;
  double grace_s = 4;
};

struct HeartbeatLink {
  int rank;  // of the other end
  int fd;    // a connected stream socket; owned by the heartbeat
};

class Heartbeat {
 public:
  // Rank 0 has a link to every other rank, the others have one to rank 0.
  Heartbeat(int rank, std::vector<std::string> hosts, std::vector<HeartbeatLink>, const HeartbeatTimes&);
  // Takes leave of the others. While an exception is in flight it tells them that this rank failed, and the
  // thread stays to end the process should it not end by itself.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  void set(int64_t step,
           const char* phase);  // what this rank does from now on; a literal of at most 15 letters
  void check();                 // a sign of progress; throws when a rank is known to be gone

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread
  std::thread thread_;
};

// Collective. Connects the ranks by TCP and starts the thread; null for one rank and for beat_s = 0. An error
// when a rank cannot reach rank 0.
std::unique_ptr<Heartbeat> start_heartbeat(const MpiSession&, const HeartbeatTimes&);

// The part of it without MPI: a listening socket, and where it can be reached ("10.0.0.7 192.168.1.7
// 127.0.0.1").
struct HeartbeatDoor {
  int fd = -1;
  int port = 0;
  uint64_t cookie = 0;  // only who knows it is let in
  std::string addresses;
};
HeartbeatDoor open_heartbeat_door(int ranks);
std::vector<HeartbeatLink> admit_ranks(HeartbeatDoor&, const Peers&, int ranks, const Deadline&);
HeartbeatLink knock(const HeartbeatDoor&, int rank,
                    const Deadline&);  // the copy that rank 0 sent; tries every address

}  // namespace slip
