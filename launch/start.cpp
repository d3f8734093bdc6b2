#include "launch/start.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/collectives.hpp"
#include "core/log.hpp"
#if SLIP_HAVE_CUDA
#include "device/cuda.hpp"
#endif
#include "kernels/cuda_queue.hpp"
#include "kernels/fp8.hpp"
#include "launch/gpus.hpp"
#include "launch/plan.hpp"

namespace slip {
namespace {

constexpr int64_t kFactsBytes = 1 << 20;

// Strings ended by 0, which no option can hold.
std::string packed(const Facts& facts) {
  std::string out;
  for (const auto& [name, value] : facts) (out += name) += '\0', (out += value) += '\0';
  return out;
}

Facts unpacked(const std::string& text) {
  Facts out;
  for (size_t at = 0; at < text.size();) {
    const size_t name = text.find('\0', at), value = text.find('\0', name + 1);
    out.emplace_back(text.substr(at, name - at), text.substr(name + 1, value - name - 1));
    at = value + 1;
  }
  return out;
}

std::string remedy(const std::string& name) {
  if (name == "--device")
    return "give every rank a GPU (srun --gpus-per-node, CUDA_VISIBLE_DEVICES), or all of them --device cpu";
  if (name.rfind("--", 0) == 0) return "start all ranks with the same options";
  if (name.find('.') != std::string::npos)
    return "start all ranks with the same --config, a file on a file system that they share, and the same "
           "--set";
  for (const char* built : {"slipstream", "commit", "compiler", "CPU code"}) {
    if (name == built)
      return "start the same executable everywhere: an absolute path on a shared file system";
  }
  return "the hosts need the same libraries: install one version, or hand the path on (mpirun -x "
         "LD_LIBRARY_PATH, srun --export=ALL)";
}

#if SLIP_HAVE_CUDA
std::string find_shared_gpus(const MpiSession& mpi, int device, const Deadline& deadline) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device));
  std::vector<GpuId> all(static_cast<size_t>(mpi.size()));
  GpuId mine;
  std::copy_n(properties.uuid.bytes, mine.size(), mine.begin());
  allgather(mpi.world(), &mine, sizeof mine, all.data(), deadline, "the GPUs of the ranks");
  return shared_gpus(all);
}
#endif

}  // namespace

int settle(const MpiSession& mpi, const std::function<void()>& look, const Deadline& deadline,
           std::string_view what) {
  Verdict mine;
  try {
    look();
  } catch (const Error& e) {
    mine = {e.exit_code(),
            mpi.rank() == 0 ? e.what() : fmt::format("{}: {}", mpi.peers().name(mpi.rank()), e.what())};
  }
  const Verdict verdict = agree(mpi.world(), mine, deadline, what);
  if (verdict.code != 0 && mpi.rank() == 0) log_error(verdict.message);
  return verdict.code;
}

Difference first_difference(const Facts& rank_0, const Facts& here, const std::string& name_0,
                            const std::string& name_here) {
  for (size_t i = 0; i < std::max(rank_0.size(), here.size()); ++i) {
    if (i < rank_0.size() && i < here.size() && rank_0[i] == here[i]) continue;
    if (i >= rank_0.size() || i >= here.size() || rank_0[i].first != here[i].first)
      return {fmt::format("{} and {} are different programs", name_0, name_here), remedy("slipstream")};
    return {fmt::format("{} is '{}' on {} and '{}' on {}", here[i].first, rank_0[i].second, name_0,
                        here[i].second, name_here),
            remedy(here[i].first)};
  }
  return {};
}

Difference compare_facts(const MpiSession& mpi, const Facts& facts, const Deadline& deadline) {
  const std::string mine = packed(facts);
  require(static_cast<int64_t>(mine.size()) < kFactsBytes, "compare_facts: that much cannot be meant");
  const uint64_t hash = std::hash<std::string>{}(mine);
  std::vector<uint64_t> all(static_cast<size_t>(mpi.size()));
  const char* what = "versions and configuration of the ranks";
  allgather(mpi.world(), &hash, sizeof hash, all.data(), deadline, what);
  if (std::count(all.begin(), all.end(), hash) == mpi.size()) return {};
  int64_t bytes = static_cast<int64_t>(mine.size());
  broadcast(mpi.world(), 0, &bytes, sizeof bytes, deadline, what);
  if (bytes < 0 || bytes >= kFactsBytes) fail(fmt::format("{}: rank 0 sends {} bytes", what, bytes));
  std::string first = mpi.rank() == 0 ? mine : std::string(static_cast<size_t>(bytes), '\0');
  broadcast(mpi.world(), 0, first.data(), bytes, deadline, what);
  const Difference here =
      first_difference(unpacked(first), facts, mpi.peers().name(0), mpi.peers().name(mpi.rank()));
  Verdict verdict;  // a remedy is one line: what follows the last line end
  if (!here.found.empty()) verdict = {kUsage, here.found + "\n" + here.remedy};
  const std::string said = agree(mpi.world(), verdict, deadline, what).message;
  const size_t end = said.rfind('\n');
  return end == std::string::npos ? Difference{} : Difference{said.substr(0, end), said.substr(end + 1)};
}

int settle_facts(const MpiSession& mpi, const Facts& facts, const Deadline& deadline) {
  const Difference d = compare_facts(mpi, facts, deadline);
  if (d.found.empty()) return kOk;
  if (mpi.rank() == 0) log_error(fmt::format("{}; {}", d.found, d.remedy));
  return kUsage;
}

GpuChoice settle_gpus(const MpiSession& mpi, Device device, bool share, const Deadline& deadline) {
  if (device == Device::cpu) return {};
#if SLIP_HAVE_CUDA
  GpuChoice c;
  c.code = settle(
      mpi, [&] { c.device = choose_device(mpi.local_rank(), mpi.local_size(), cuda_device_count(), share); },
      deadline, "the choice of GPUs");
  if (c.code != 0) return c;
  const std::string shared = find_shared_gpus(mpi, c.device, deadline);
  c.shared = !shared.empty();
  if (c.shared && !share) {  // all ranks know it: one says it
    if (mpi.rank() == 0)
      log_error(shared +
                "; give each its own (srun --gpus-per-node, CUDA_VISIBLE_DEVICES), or add --share-gpu");
    c.code = kUsage;
  }
  return c;
#else
  (void)mpi, (void)share, (void)deadline;
  fail("this build has no CUDA back end");
#endif
}

int settle_fp8(const MpiSession& mpi, int device, const Deadline& deadline) {
  return settle(
      mpi,
      [&] {
        const std::string problem = no_fp8(cuda_device_name(device), cuda_capability(device));
        if (!problem.empty()) fail_usage("train.precision=" + problem);
      },
      deadline, "what the GPUs compute");
}

}  // namespace slip
