#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "apps/doctor.hpp"
#include "device/buffer.hpp"
#include "io/durable.hpp"
#include "io/h5.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;

std::string size_text(int64_t bytes) {
  return bytes >= kGiB ? fmt::format("{:.1f} GiB", static_cast<double>(bytes) / kGiB)
                       : fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kMiB);
}

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Of the file systems on which runs get into trouble; linux/magic.h has the numbers.
const char* network_file_system(const std::string& folder) {
  struct statfs s {};
  if (statfs(folder.c_str(), &s) != 0) return nullptr;
  switch (static_cast<unsigned long>(s.f_type)) {
    case 0x6969:
      return "NFS";
    case 0x0bd00bd0:
      return "Lustre";
    case 0xff534d42:
      return "CIFS";
    case 0xfe534d42:
      return "SMB2";
    case 0x65735546:
      return "FUSE";
    case 0x47504653:
      return "GPFS";
    case 0x19830326:
      return "BeeGFS";
    default:
      return nullptr;
  }
}

// A file in the folder that goes again.
struct Probe {
  explicit Probe(const std::string& folder)
      : path(fmt::format("{}/.slipstream-doctor-{}", folder, getpid())) {}
  ~Probe() {
    std::error_code ignored;
    fs::remove(path, ignored);
    fs::remove(path + ".h5", ignored);
  }
  std::string path;
};

// Bytes a second of writing and syncing, for about a second; 0 with errno where it fails.
double write_rate(const std::string& path) {
  const int fd = open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return 0;
  std::vector<char> block(static_cast<size_t>(8 * kMiB));
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<char>(i * 2654435761u >> 11);
  int64_t bytes = 0;
  bool ok = true;
  const Clock::time_point began = Clock::now();
  while (ok && bytes < 512 * kMiB && seconds_since(began) < 1) {
    const ssize_t n = write(fd, block.data(), block.size());
    ok = n > 0;
    bytes += ok ? n : 0;
  }
  ok = ok && fsync(fd) == 0;
  const int error = errno;
  close(fd);
  errno = error;
  return ok ? static_cast<double>(bytes) / seconds_since(began) : 0;
}

Finding hdf5_finding(const std::string& path) {
  h5_quiet();
  {
    const H5Id file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
    if (!file)
      return {Health::fail, "HDF5", fmt::format("{}: a file cannot be made: {}", path, h5_error()),
              "if it says that the file cannot be locked: export HDF5_USE_FILE_LOCKING=FALSE on all ranks"};
  }
  const H5Id again(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  if (!again)
    return {Health::fail, "HDF5",
            fmt::format("{}: a file that was just made cannot be read: {}", path, h5_error()),
            "export HDF5_USE_FILE_LOCKING=FALSE on all ranks"};
  const char* const locking = std::getenv("HDF5_USE_FILE_LOCKING");
  return {Health::ok, "HDF5",
          fmt::format("a file is made and read back{}",
                      locking == nullptr ? "" : fmt::format(", HDF5_USE_FILE_LOCKING={}", locking)),
          ""};
}

}  // namespace

void look_at_launch(const MpiSession& mpi, Findings& out) {
  const int cores = usable_cores();
  const std::string found = fmt::format("{} usable by a rank, {} rank{} on the host", cores, mpi.local_size(),
                                        mpi.local_size() > 1 ? "s" : "");
  const bool bound = cores == 1 && mpi.local_size() > 1;
  out.push_back(
      bound ? Finding{Health::warn, "cores", found,
                      "ranks are bound to one core each; their threads (signs of life, writing, NCCL) "
                      "share it: --bind-to none, or srun --cpus-per-task=4"}
      : cores < mpi.local_size()
          ? Finding{Health::warn, "cores", found,
                    "more ranks than cores: fine for a try; launch/run keeps idle ranks from polling"}
          : Finding{Health::ok, "cores", found, ""});
  if (mpi.local_rank() != 0) return;
  // MPI and NCCL keep the buffers between ranks of a host there.
  const int64_t free = free_bytes("/dev/shm"), wanted = 64 * kMiB * mpi.local_size();
  const std::string shm = fmt::format("/dev/shm has {} free", size_text(free));
  out.push_back(
      mpi.local_size() > 1 && free >= 0 && free < wanted
          ? Finding{Health::fail, "shared memory",
                    fmt::format("{}, {} ranks may need {}", shm, mpi.local_size(), size_text(wanted)),
                    "in a container: --ipc=host or --shm-size=8g; else mount -o remount,size=8g /dev/shm"}
          : Finding{Health::ok, "shared memory", shm, ""});
}

void look_at_limits(Findings& out) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const std::string open_files = fmt::format("{} open files", files.rlim_cur);
  out.push_back(files.rlim_cur < 1024
                    ? Finding{Health::warn, "limits", open_files,
                              "ulimit -n 4096 before the start (shards and connections are files)"}
                    : Finding{Health::ok, "limits", open_files, ""});
  rlimit size{};
  getrlimit(RLIMIT_FSIZE, &size);
  if (size.rlim_cur != RLIM_INFINITY)
    out.push_back({Health::warn, "limits", fmt::format("files may have {} bytes at most", size.rlim_cur),
                   "ulimit -f unlimited: checkpoints are large"});
  out.push_back({Health::ok, "host memory",
                 fmt::format("{} available", size_text(host_bytes_available() / kGiB * kGiB)), ""});
}

void look_at_environment(Findings& out) {
  struct Trap {
    const char *name, *value, *remedy;
  };
  static const Trap kTraps[] = {
      {"NCCL_P2P_DISABLE", "1", "unset it: GPUs of one host then send through host memory"},
      {"NCCL_SHM_DISABLE", "1", "unset it, unless the machine's administrator asks for it"},
      {"CUDA_LAUNCH_BLOCKING", "1", "unset it: every kernel waits for the one before"},
      {"OMPI_MCA_btl", "tcp,self", "unset it: ranks of one host then talk through TCP"},
      {"HDF5_DISABLE_VERSION_CHECK", "2",
       "unset it: it hides a program that runs with another HDF5 than it was built with"}};
  bool clean = true;
  for (const Trap& t : kTraps) {
    const char* const value = std::getenv(t.name);
    if (value == nullptr || std::strcmp(value, t.value) != 0) continue;
    clean = false;
    out.push_back({Health::warn, "environment", fmt::format("{}={}", t.name, value), t.remedy});
  }
  if (clean) out.push_back({Health::ok, "environment", "no variable that slows a run down", ""});
}

void look_at_folder(const std::string& folder, Findings& out) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    return out.push_back({Health::fail, "folder", fmt::format("{}: not a folder", folder),
                          "make it, or name another with --dir"});
  const Probe probe(folder);
  const double rate = write_rate(probe.path);
  if (rate == 0)
    return out.push_back({Health::fail, "folder",
                          fmt::format("{}: cannot write there: {}", folder, std::strerror(errno)),
                          "name a folder that this user may write to, on a disk with room, with --dir"});
  const int64_t free = free_bytes(folder);
  const char* const network = network_file_system(folder);
  const std::string found =
      fmt::format("{}: {} free, {:.0f} MB/s written and synced{}", folder, size_text(free / kGiB * kGiB),
                  rate * 1e-6, network == nullptr ? "" : fmt::format(", on {}", network));
  out.push_back(free < 20 * kGiB ? Finding{Health::warn, "folder", found,
                                           "a checkpoint of an 8B target's drafter takes 15 GB, of a 27B "
                                           "target's 25 GB: checkpoint.keep, or another disk"}
                : rate < 50e6    ? Finding{Health::warn, "folder", found,
                                        "slow: a checkpoint of 15 GB takes minutes; checkpoint.dir and "
                                           "dump.dir can be on another disk"}
                                 : Finding{Health::ok, "folder", found, ""});
  try {
    rename_durably(probe.path, probe.path + ".h5");
  } catch (const Error& e) {
    out.push_back({Health::fail, "folder", e.what(),
                   "checkpoints and shards become visible by a rename: use another file system"});
  }
  const int fd = open((probe.path + ".h5").c_str(), O_RDONLY | O_CLOEXEC);
  const bool locks = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) == 0;
  const std::string why = locks ? "" : std::strerror(errno);
  if (fd >= 0) close(fd);
  if (locks) {
    out.push_back({Health::ok, "file locks", "work", ""});
  } else {
    out.push_back(
        {Health::warn, "file locks", fmt::format("{}: {}", folder, why),
         "export HDF5_USE_FILE_LOCKING=FALSE on all ranks: HDF5 refuses files that it cannot lock"});
  }
  out.push_back(hdf5_finding(probe.path + ".h5"));
}

}  // namespace slip
