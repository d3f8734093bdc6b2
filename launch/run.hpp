// A training run from its options to its exit code, on one rank of an MPI job.
#pragma once
#include "comm/mpi.hpp"
#include "launch/inputs.hpp"

namespace slip {

int run_training(const RunOptions&, const MpiSession&);
// The same plan that a run of so many ranks makes, with memory by name.
Plan plan_run(const RunOptions&, const RunInputs&, int ranks);

}  // namespace slip
