#include "comm/mpi.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <numeric>

#include "comm/collectives.hpp"
#include "comm/comm_state.hpp"
#include "comm/heartbeat.hpp"
#include "core/log.hpp"

namespace slip {
namespace {

constexpr int kHostBytes = 64;

void wait_request(const Peers& peers, MPI_Request& request, int world_peer, const Deadline& deadline,
                  std::string_view what) {
  Wait waiting(peers, deadline, what, world_peer);
  for (;;) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done) return;
    waiting.pause();
  }
}

void refuse(const std::string& problem) {
  if (!problem.empty()) fail_usage(problem);
}

bool mpi_runs() {
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started && !ended;
}

Comm duplicate(MPI_Comm from, const std::string& name, const Peers& peers, const Deadline& deadline) {
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Comm_idup(from, &made, &request));
  wait_request(peers, request, -1, deadline, "a duplicate of a communicator: " + name);
  return Comm(made, name, peers);
}

}  // namespace

void check_mpi(int rc, Where at) {
  if (rc == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(rc, text, &length);
  fail(fmt::format("MPI: {}", text), at);
}

CommState::~CommState() {
  if (comm == MPI_COMM_NULL || std::uncaught_exceptions() > 0 || !mpi_runs()) return;
  if (MPI_Comm_free(&comm) != MPI_SUCCESS) log_error("the communicator " + name + " would not close");
}

Comm::Comm() = default;
Comm::~Comm() = default;
Comm::Comm(Comm&&) noexcept = default;
Comm& Comm::operator=(Comm&&) noexcept = default;

Comm::Comm(MPI_Comm owned, std::string name, const Peers& peers) : state_(std::make_unique<CommState>()) {
  CommState& s = *state_;
  s.comm = owned;
  s.name = std::move(name);
  s.peers = &peers;
  check_mpi(MPI_Comm_set_errhandler(owned, MPI_ERRORS_RETURN));  // or check_mpi never sees an error
  check_mpi(MPI_Comm_rank(owned, &s.rank));
  check_mpi(MPI_Comm_size(owned, &s.size));
  std::vector<int> mine(static_cast<size_t>(s.size));
  std::iota(mine.begin(), mine.end(), 0);
  s.world_ranks.resize(mine.size());
  MPI_Group group = MPI_GROUP_NULL, world = MPI_GROUP_NULL;  // local operations, no messages
  check_mpi(MPI_Comm_group(owned, &group));
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world));
  check_mpi(MPI_Group_translate_ranks(group, s.size, mine.data(), world, s.world_ranks.data()));
  check_mpi(MPI_Group_free(&group));
  check_mpi(MPI_Group_free(&world));
}

int Comm::rank() const { return state_->rank; }
int Comm::size() const { return state_->size; }
int Comm::world_rank(int rank) const {
  return rank < 0 ? -1 : state_->world_ranks.at(static_cast<size_t>(rank));
}
MPI_Comm Comm::get() const { return state_->comm; }
const std::string& Comm::name() const { return state_->name; }
const Peers& Comm::peers() const { return *state_->peers; }

Comm Comm::split(int color, const std::string& name, const Deadline& deadline) const {
  // MPI has no nonblocking split: all ranks are known to be here before it starts.
  barrier(*this, deadline, "to split off " + name);
  MPI_Comm made = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(get(), color < 0 ? MPI_UNDEFINED : color, rank(), &made));
  return made == MPI_COMM_NULL ? Comm() : Comm(made, name, peers());
}

Comm Comm::dup(const std::string& name, const Deadline& deadline) const {
  return duplicate(get(), name, peers(), deadline);
}

void wait(const Comm& comm, MPI_Request& request, int peer, const Deadline& deadline, std::string_view what) {
  wait_request(comm.peers(), request, comm.world_rank(peer), deadline, what);
}

void drop_receive(MPI_Request& request) noexcept {
  if (request == MPI_REQUEST_NULL || !mpi_runs()) return;
  if (MPI_Cancel(&request) != MPI_SUCCESS || MPI_Request_free(&request) != MPI_SUCCESS) {
    log_error("a receive could not be taken back");
  }
}

MpiSession::MpiSession(int& argc, char**& argv, const LauncherEnv& env, double timeout_s)
    : timeout_s_(timeout_s), exceptions_(std::uncaught_exceptions()) {
  refuse(launcher_problem(0, env));  // some MPI libraries end the process when they find no peers
  int provided = 0;
  owns_mpi_ = !mpi_runs();
  if (owns_mpi_) check_mpi(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided));
  check_mpi(MPI_Query_thread(&provided));
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  if (provided < MPI_THREAD_FUNNELED) fail("this MPI does not allow threads beside the one that calls it");
  int size = 0;
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size));
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &peers_->rank));
  const std::string problem = launcher_problem(size, env);
  if (!problem.empty() && owns_mpi_) check_mpi(MPI_Finalize());  // alone: nobody to wait for
  refuse(problem);

  const Deadline deadline = deadline_in(timeout_s);
  world_ = duplicate(MPI_COMM_WORLD, "world", *peers_, deadline);
  std::vector<char> mine(kHostBytes), all(static_cast<size_t>(size) * kHostBytes);
  host_name().copy(mine.data(), kHostBytes - 1);
  allgather(world_, mine.data(), kHostBytes, all.data(), deadline, "host names at the start");
  for (int r = 0; r < size; ++r) peers_->hosts.emplace_back(&all[static_cast<size_t>(r) * kHostBytes]);

  // The launchers' environment variables differ and lie (SLURM_LOCALID under mpirun): only MPI is asked.
  barrier(world_, deadline, "the start");
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(world_.get(), MPI_COMM_TYPE_SHARED, world_.rank(), MPI_INFO_NULL, &node));
  check_mpi(MPI_Comm_rank(node, &local_rank_));
  check_mpi(MPI_Comm_size(node, &local_size_));
  check_mpi(MPI_Comm_free(&node));
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > exceptions_ || !mpi_runs()) return;
  try {
    barrier(world_, deadline_in(timeout_s_),
            "the end of the job");  // MPI_Finalize itself would wait for ever
    world_ = Comm();
    if (owns_mpi_) check_mpi(MPI_Finalize());
  } catch (const Error& e) {
    if (*e.what() != 0) log_error(e.what());  // else another rank has said it
    MPI_Abort(MPI_COMM_WORLD, e.exit_code());
  }
}

void MpiSession::keep(std::unique_ptr<Heartbeat> heartbeat) {
  heartbeat_ = std::move(heartbeat);
  if (heartbeat_) set_watch([h = heartbeat_.get()] { h->check(); });
}

void abort_job(int exit_code) {
  if (mpi_runs()) {
    int size = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size > 1) {
      MPI_Abort(MPI_COMM_WORLD, exit_code);
    } else {
      MPI_Finalize();
    }
  }
  std::exit(exit_code);
}

}  // namespace slip
