// Did the launcher start the ranks that it promised? `srun` without a matching PMI starts N programs that
// each believe they are alone and overwrite each other's files.
#pragma once
#include <functional>
#include <string>

namespace slip {

struct LauncherEnv {
  int slurm_step_tasks = -1;     // SLURM_STEP_NUM_TASKS: set for tasks of an srun step, not in a batch script
  int slurm_tasks = -1;          // SLURM_NTASKS: set in a batch script too
  int slurm_procid = -1;         // SLURM_PROCID: 0 in a batch script
  int ompi_size = -1;            // OMPI_COMM_WORLD_SIZE: started by Open MPI's mpirun
  int pmi_size = -1;             // PMI_SIZE: started by another mpiexec
  int rank = -1;                 // of the job, as mpirun or a process manager says it
  bool process_manager = false;  // PMIX_RANK, PMI_RANK or PMI_FD: MPI can ask who its peers are
};

// `get` is std::getenv in the program and a table in tests.
LauncherEnv launcher_env(const std::function<const char*(const char*)>& get);

// What is wrong and what to type instead; empty: nothing. mpi_size 0: MPI is not started yet.
std::string launcher_problem(int mpi_size, const LauncherEnv&);

}  // namespace slip
