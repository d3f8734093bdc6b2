// What ranks settle before they work together: that all could read their options, that they are the same
// program with the same configuration, and who has which GPU. A refusal is the same exit code on all ranks
// and one line, said by rank 0, that names the rank concerned, its host and what to try.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/mpi.hpp"
#include "device/queue.hpp"

namespace slip {

// Every rank calls `look`, which may throw Error; the lowest rank that did decides for all. Returns 0, or the
// exit code of all.
int settle(const MpiSession&, const std::function<void()>& look, const Deadline&, std::string_view what);

// Name and value, in the same order on all ranks. Names: those of `--version`, options with their dashes,
// configuration keys.
using Facts = std::vector<std::pair<std::string, std::string>>;

struct Difference {
  std::string found, remedy;  // both empty: alike
};
// The first fact of `here` that is not as it is on rank 0. The names are as Peers::name says them.
Difference first_difference(const Facts& rank_0, const Facts& here, const std::string& name_0,
                            const std::string& name_here);
// The same over all ranks, and the same on all of them: what the lowest rank that differs from rank 0 found.
Difference compare_facts(const MpiSession&, const Facts&, const Deadline&);
// `settle` for the facts: usage where a rank's differ from those of rank 0.
int settle_facts(const MpiSession&, const Facts&, const Deadline&);

struct GpuChoice {
  int code = 0;         // not 0: refused
  int device = 0;       // of this rank
  bool shared = false;  // ranks of this job compute on one GPU
};
// `settle` for the GPUs of ranks that compute on `device`; on the CPU there is nothing to settle. Without
// CUDA in the build, a GPU is an error.
GpuChoice settle_gpus(const MpiSession&, Device device, bool share, const Deadline&);
// `settle` for train.precision=fp8 on GPUs, each of which must be able to.
int settle_fp8(const MpiSession&, int device, const Deadline&);

}  // namespace slip
