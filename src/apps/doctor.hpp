// What `doctor` looks at. Every rank makes findings; rank 0 prints them, those that ranks share only once.
#pragma once
#include <string>
#include <vector>

#include "comm/mpi.hpp"

namespace slip {

enum class Health { ok, warn, fail };
struct Finding {
  Health health = Health::ok;
  std::string what;    // one word or two: "folder", "GPU"
  std::string found;   // one line
  std::string remedy;  // what to type or whom to ask; empty where health is ok
};
using Findings = std::vector<Finding>;

// doctor_host.cpp: this process and its machine; no messages.
void look_at_launch(const MpiSession&, Findings&);          // cores and shared memory of this host
void look_at_limits(Findings&);                             // open files, host memory
void look_at_environment(Findings&);                        // variables that slow a run down or break it
void look_at_folder(const std::string& folder, Findings&);  // space, speed, durability, HDF5 and its locks

// doctor_gpu.cpp: this rank's GPU. `device`: its index, or -1 when there is none to look at.
int look_at_gpu(const MpiSession&, Findings&);

// doctor_wire.cpp: collective. Messages between neighbours in a ring of all ranks, by MPI and by NCCL.
void look_at_mpi(const MpiSession&, Findings& of_rank_0);
void look_at_nccl(const MpiSession&, int device, Findings& of_rank_0);

}  // namespace slip
