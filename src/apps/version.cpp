#include "apps/version.hpp"

#include <fmt/format.h>
#include <hdf5.h>
#include <mpi.h>

#include <string>

#include "device/cpu_level.hpp"
#if SLIP_HAVE_CUDA
#include <cuda_runtime.h>
#include <nccl.h>
#endif
#ifdef SLIP_CUDNN_VERSION
#define SLIP_CUDNN SLIP_CUDNN_VERSION
#else
#define SLIP_CUDNN "not in this build"
#endif

namespace slip {

std::string commit_text() { return SLIP_COMMIT; }

std::string program_text() { return fmt::format("slipstream {} ({})", SLIP_VERSION, SLIP_COMMIT); }

Facts version_facts() {
  char mpi[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(mpi, &length);  // legal before MPI_Init
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  const std::string mpi_line = std::string(mpi).substr(0, std::string(mpi).find(','));
#if SLIP_HAVE_CUDA
  int runtime = 0, nccl = 0;
  cudaRuntimeGetVersion(&runtime);
  ncclGetVersion(&nccl);
  const std::string cuda = fmt::format("{}.{}", runtime / 1000, runtime % 1000 / 10);
  const std::string nccl_text = fmt::format("{}.{}.{}", nccl / 10000, nccl % 10000 / 100, nccl % 100);
#else
  const std::string cuda = "not in this build (CPU back end only)", nccl_text = "not in this build";
#endif
  return {{"slipstream", SLIP_VERSION},
          {"commit", SLIP_COMMIT},
          {"compiler", __VERSION__},
          {"CPU code", cpu_level()},
          {"MPI", mpi_line},
          {"HDF5", fmt::format("{}.{}.{}", major, minor, release)},
          {"CUDA", cuda},
          {"NCCL", nccl_text},
          {"cuDNN", SLIP_CUDNN}};
}

std::string version_text() {
  std::string out;
  for (const auto& [name, value] : version_facts()) out += fmt::format("{:<9} {}\n", name, value);
  return out;
}

}  // namespace slip
