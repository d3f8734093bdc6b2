#include "comm/launcher.hpp"

#include <fmt/format.h>

#include <cstdlib>

namespace slip {

LauncherEnv launcher_env(const std::function<const char*(const char*)>& get) {
  const auto number = [&](const char* name) {
    const char* text = get(name);
    if (text == nullptr || *text == 0) return -1;
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    return *end == 0 && value >= 0 && value < (1 << 24) ? static_cast<int>(value) : -1;
  };
  LauncherEnv env;
  env.slurm_step_tasks = number("SLURM_STEP_NUM_TASKS");
  env.slurm_tasks = number("SLURM_NTASKS");
  env.slurm_procid = number("SLURM_PROCID");
  env.ompi_size = number("OMPI_COMM_WORLD_SIZE");
  env.pmi_size = number("PMI_SIZE");
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (env.rank < 0) env.rank = number(name);
  }
  env.process_manager = get("PMIX_RANK") != nullptr || get("PMI_RANK") != nullptr || get("PMI_FD") != nullptr;
  return env;
}

std::string launcher_problem(int mpi_size, const LauncherEnv& env) {
  if (mpi_size > 1) {
    if (env.ompi_size < 0 || env.ompi_size == mpi_size) return {};
    return fmt::format(
        "mpirun started {} ranks, but MPI sees {}: use the mpirun of the MPI that slipstream was built with",
        env.ompi_size, mpi_size);
  }
  if (env.ompi_size >= 0 || (env.pmi_size >= 0 && env.slurm_step_tasks < 0)) {
    const int promised = env.ompi_size >= 0 ? env.ompi_size : env.pmi_size;
    if (mpi_size == 0 || promised <= 1) return {};
    return fmt::format(
        "mpirun started {} ranks, but MPI sees 1: it belongs to another MPI than the one slipstream was "
        "built with; "
        "use the mpirun of that one",
        promised);
  }
  // Inside a batch script or an salloc shell SLURM_NTASKS is that of the job, there is no step, and one plain
  // process is what was asked for. Only a task of a step has SLURM_STEP_NUM_TASKS, or a SLURM_PROCID above 0.
  const bool in_step = env.slurm_step_tasks >= 0 || env.slurm_procid > 0;
  const int tasks = env.slurm_step_tasks >= 0 ? env.slurm_step_tasks : env.slurm_tasks;
  if (!in_step || tasks <= 1) return {};
  if (mpi_size == 0 && env.process_manager) return {};  // it may yet work
  return fmt::format(
      "srun started {} tasks, but MPI sees 1 rank in each: use `srun --mpi=pmix ...`, or mpirun", tasks);
}

}  // namespace slip
