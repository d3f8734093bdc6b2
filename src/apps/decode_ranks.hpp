// What commands that share prompts over ranks do before they begin.
#pragma once
#include <functional>
#include <memory>

#include "comm/mpi.hpp"
#include "device/queue.hpp"

namespace slip {

// The MPI session of a job of several ranks, with signs of life; null for a process that was started alone.
std::unique_ptr<MpiSession> decode_session(int& argc, char**& argv);

// Runs `read` on rank 0 and, when that did not fail, on all ranks: what is wrong is said once, and all ranks
// return its exit code. Alone (comm null): just runs it.
int on_all_ranks(const Comm* comm, double timeout_s, const std::function<void()>& read);

// The GPU of this rank; fail_usage when ranks would share one unasked. 0 on the CPU.
int gpu_of_rank(Device, const MpiSession*, bool share);

}  // namespace slip
