// The MPI session of this process, and communicators. Operations are posted and tested, never waited for
// inside MPI: see wait.hpp. All calls come from the thread that made the session.
#pragma once
#include <mpi.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/launcher.hpp"
#include "comm/wait.hpp"
#include "core/check.hpp"

namespace slip {

void check_mpi(int rc, Where at = Where::current());

class Heartbeat;
struct CommState;  // the handle, the ranks' names, scratch of the reductions

// Owns a communicator. Must die before the session. While an exception is in flight it is not freed: the job
// aborts.
class Comm {
 public:
  Comm();  // no communicator: what a rank outside a split has
  ~Comm();
  Comm(Comm&&) noexcept;
  Comm& operator=(Comm&&) noexcept;
  Comm(MPI_Comm owned, std::string name, const Peers& peers);

  explicit operator bool() const { return state_ != nullptr; }
  int rank() const;
  int size() const;
  int world_rank(int rank) const;
  MPI_Comm get() const;
  const std::string& name() const;
  const Peers& peers() const;
  CommState& state() const { return *state_; }

  // Collective over this communicator. Ranks keep their order. color < 0: not a member of any part.
  Comm split(int color, const std::string& name, const Deadline&) const;
  Comm dup(const std::string& name, const Deadline&) const;

 private:
  std::unique_ptr<CommState> state_;
};

// Tests `request` until it is complete; `peer` is a rank of the communicator (or -1) and is named at the
// deadline.
void wait(const Comm&, MPI_Request& request, int peer, const Deadline&, std::string_view what);

// Takes back a receive that nobody waits for any more, before its memory goes. Nothing to do for a null
// request.
void drop_receive(MPI_Request& request) noexcept;

class MpiSession {
 public:
  // Starts MPI (and ends it, unless it runs already: tests); exit code 2 where the launcher's promise and
  // MPI's size differ. `timeout_s` bounds the start and the end, where all ranks must meet.
  MpiSession(int& argc, char**& argv, const LauncherEnv& env, double timeout_s = 60);
  // Meets the other ranks and finalizes; does neither while an exception is in flight: `abort_job` comes
  // then.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  int local_rank() const { return local_rank_; }  // among the ranks of this host
  int local_size() const { return local_size_; }
  const Comm& world() const { return world_; }
  const Peers& peers() const { return *peers_; }
  void set_watch(std::function<void()> watch) { peers_->watch = std::move(watch); }
  // Beats until MPI has ended; every wait looks at it.
  void keep(std::unique_ptr<Heartbeat>);
  Heartbeat* heartbeat() const { return heartbeat_.get(); }  // null: none

 private:
  std::unique_ptr<Heartbeat> heartbeat_;  // goes last
  std::unique_ptr<Peers> peers_ = std::make_unique<Peers>();
  Comm world_;
  int local_rank_ = 0, local_size_ = 1;
  double timeout_s_;
  int exceptions_;
  bool owns_mpi_ = true;
};

// What `main` does with an error that the other ranks do not know of. With one rank it is a plain exit.
[[noreturn]] void abort_job(int exit_code);

}  // namespace slip
