// What a Comm owns; for the sources of this folder.
#pragma once
#include <mpi.h>

#include <string>
#include <vector>

#include "comm/wait.hpp"

namespace slip {

struct CommState {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 1;
  std::string name;
  const Peers* peers = nullptr;
  std::vector<int> world_ranks;
  std::vector<char> scratch;  // grows to one piece of a reduction and stays

  CommState() = default;
  CommState(const CommState&) = delete;
  CommState& operator=(const CommState&) = delete;
  ~CommState();
};

}  // namespace slip
