// `dump` from its options to its exit code, on one rank of an MPI job. Every rank runs the target and writes
// its own shards.
#pragma once
#include "comm/mpi.hpp"
#include "launch/dump_plan.hpp"
#include "launch/inputs.hpp"

namespace slip {

// The inputs of a dump: those of a training run, but each document once whatever its weight.
RunInputs read_dump_inputs(const RunOptions&);
std::string dump_text(const RunOptions&, const DumpPlan&);                   // documents, shards, bytes
std::vector<Arena::Entry> dump_memory(const RunOptions&, const RunInputs&);  // of a rank, by name

int run_dump(const RunOptions&, const MpiSession&);

}  // namespace slip
