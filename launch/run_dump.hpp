// `dump` from its options to its exit code, on one rank of an MPI job. Every rank runs the target and writes
// its own shards.
#pragma once
#include "comm/mpi.hpp"
#include "launch/inputs.hpp"

namespace slip {

int run_dump(const RunOptions&, const MpiSession&);

}  // namespace slip
