// What `decode` and `generate`, whose ranks share prompts, do before they begin.
#pragma once
#include <functional>
#include <memory>

#include "apps/answer_options.hpp"
#include "comm/mpi.hpp"
#include "launch/start.hpp"

namespace slip {

// The MPI session of a job of several ranks, with signs of life; null for a process that was started alone.
std::unique_ptr<MpiSession> decode_session(int& argc, char**& argv);

// Runs `read` on rank 0 and, when that did not fail, on all ranks: what is wrong is said once, and all ranks
// return its exit code. Alone (comm null): just runs it.
int on_all_ranks(const Comm* comm, double timeout_s, const std::function<void()>& read);

// Settles the options (AnswerOptions::settle). Ranks whose options are wrong, that differ, or that would
// share a GPU unasked, are refused by the code, in one line; the GPU of this rank. Alone (mpi null) and on
// the CPU it is 0, and wrong options throw.
GpuChoice settle_ranks(const MpiSession* mpi, AnswerOptions&);

}  // namespace slip
