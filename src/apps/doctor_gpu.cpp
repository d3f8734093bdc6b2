#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "apps/doctor.hpp"
#include "comm/collectives.hpp"
#include "kernels/cuda_queue.hpp"
#include "launch/gpus.hpp"
#if SLIP_HAVE_CUDA
#include <cuda_runtime.h>

#include "launch/plan.hpp"
#endif

namespace slip {
namespace {

#if SLIP_HAVE_CUDA
std::string visible() {
  const char* const v = std::getenv("CUDA_VISIBLE_DEVICES");
  return v == nullptr ? "CUDA_VISIBLE_DEVICES is not set" : fmt::format("CUDA_VISIBLE_DEVICES={}", v);
}

// What the driver says when it hides all devices, or when it is too old for this CUDA.
std::string driver_complaint() {
  int count = 0;
  const cudaError_t rc = cudaGetDeviceCount(&count);
  cudaGetLastError();
  return rc == cudaSuccess ? "no device" : cudaGetErrorString(rc);
}
#endif

}  // namespace

int look_at_gpu(const MpiSession& mpi, Findings& out) {
  GpuId mine{};
  int device = -1;
  const int count = cuda_device_count();
#if SLIP_HAVE_CUDA
  if (count == 0) {
    out.push_back({Health::ok, "GPU",
                   fmt::format("none ({}; {}): ranks compute on the CPU", driver_complaint(), visible()),
                   ""});
  } else {
    device = mpi.local_rank() % count;
    cudaDeviceProp p{};
    size_t free = 0, total = 0;
    int driver = 0, runtime = 0;
    const bool ok = cudaSetDevice(device) == cudaSuccess &&
                    cudaGetDeviceProperties(&p, device) == cudaSuccess &&
                    cudaMemGetInfo(&free, &total) == cudaSuccess;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    std::copy_n(p.uuid.bytes, mine.size(), mine.begin());
    const std::string found =
        fmt::format("{} of {} visible: {}, sm_{}{}, {:.0f} of {:.0f} GiB free, driver for CUDA {}.{}", device,
                    count, p.name, p.major, p.minor, static_cast<double>(free >> 20) / 1024,
                    static_cast<double>(total >> 20) / 1024, driver / 1000, driver % 1000 / 10);
    if (!ok) {
      out.push_back({Health::fail, "GPU",
                     fmt::format("device {}: {}", device, cudaGetErrorString(cudaGetLastError())),
                     "another process may hold it in exclusive mode, or it has failed: nvidia-smi"});
      device = -1;
    } else if (driver < runtime) {
      out.push_back({Health::fail, "GPU", found,
                     fmt::format("this program was built with CUDA {}.{}: install a newer driver",
                                 runtime / 1000, runtime % 1000 / 10)});
    } else if (static_cast<double>(free) < 0.9 * static_cast<double>(total)) {
      out.push_back({Health::warn, "GPU", found, "another process uses this GPU: nvidia-smi"});
    } else {
      out.push_back({Health::ok, "GPU", found, ""});
    }
    // An empty kernel image list or a wrong architecture shows with the first launch: a queue makes one.
    if (device >= 0) {
      try {
        const CudaQueue queue(device);
        synchronize(queue.queue());
      } catch (const Error& e) {
        out.push_back({Health::fail, "GPU", e.what(),
                       fmt::format("build for sm_{}{}: -DSLIP_CUDA_ARCHITECTURES={}{}-real", p.major, p.minor,
                                   p.major, p.minor)});
        device = -1;
      }
    }
  }
#else
  out.push_back({Health::ok, "GPU", "this program is built without CUDA: ranks compute on the CPU", ""});
#endif
  std::vector<GpuId> all(static_cast<size_t>(mpi.size()));
  allgather(mpi.world(), &mine, sizeof mine, all.data(), deadline_in(60), "the GPUs of the ranks");
  if (mpi.rank() == 0 && count > 0) {
    const std::string same = shared_gpus(all);
    if (!same.empty()) {
      out.push_back({Health::fail, "GPU map", same,
                     "as many ranks as GPUs; under Slurm --gpus-per-node with all GPUs visible to every "
                     "rank; --share-gpu only to try things out"});
    } else {
      out.push_back({Health::ok, "GPU map", "every rank has a GPU of its own", ""});
    }
  }
  return device;
}

}  // namespace slip
