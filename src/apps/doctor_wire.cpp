#include <fmt/format.h>

#include <algorithm>

#include "apps/doctor.hpp"
#include "comm/collectives.hpp"
#include "device/buffer.hpp"
#include "kernels/cuda_queue.hpp"
#if SLIP_HAVE_CUDA
#include "comm/nccl_transport.hpp"
#endif

namespace slip {
namespace {

constexpr double kTimeout = 60;
constexpr int64_t kBytes = int64_t{1} << 26;
constexpr int kRepeats = 5;

struct Link {
  int from, to;
  double gb_s;
};

std::string spread(const std::vector<Link>& links) {
  const auto [slow, fast] = std::minmax_element(links.begin(), links.end(),
                                                [](const Link& a, const Link& b) { return a.gb_s < b.gb_s; });
  const std::string slowest = fmt::format("{:.2f} GB/s from rank {} to {}", slow->gb_s, slow->from, slow->to);
  return links.size() == 1 ? slowest
                           : fmt::format("{:.2f} to {:.2f} GB/s over {} pairs, slowest: {}", slow->gb_s,
                                         fast->gb_s, links.size(), slowest);
}

// Each rank to the next, one pair after the other, so that pairs do not disturb each other; the rates are
// known to all. `move` sends on one side and receives on the other, and returns when it is done.
template <class Move> std::vector<Link> ring(const MpiSession& mpi, Move&& move) {
  std::vector<Link> links;
  const int n = mpi.size(), me = mpi.rank();
  for (int from = 0; from < (n == 2 ? 1 : n); ++from) {
    const int to = (from + 1) % n;
    barrier(mpi.world(), deadline_in(kTimeout), "the next pair");
    double best = 1e30;
    for (int i = 0; i < kRepeats && (me == from || me == to); ++i) {
      const Clock::time_point began = Clock::now();
      move(me == from, me == from ? to : from);
      best = std::min(best, seconds_since(began));
    }
    double rate = static_cast<double>(kBytes) / best * 1e-9;
    broadcast(mpi.world(), to, &rate, sizeof rate, deadline_in(kTimeout), "a rate");
    links.push_back({from, to, rate});
  }
  return links;
}

}  // namespace

void look_at_mpi(const MpiSession& mpi, Findings& out) {
  if (mpi.size() < 2) return;
  const Comm& world = mpi.world();
  const Buffer buffer(Place::host, kBytes);
  const std::vector<Link> links = ring(mpi, [&](bool sends, int peer) {
    const Deadline deadline = deadline_in(kTimeout);
    sends ? send_bytes(world, peer, 3, buffer.data(), kBytes, deadline, "64 MiB")
          : recv_bytes(world, peer, 3, buffer.data(), kBytes, deadline, "64 MiB");
  });
  if (mpi.rank() != 0) return;
  const double slowest = std::min_element(links.begin(), links.end(), [](const Link& a, const Link& b) {
                           return a.gb_s < b.gb_s;
                         })->gb_s;
  out.push_back(slowest < 0.3 ? Finding{Health::warn, "MPI", spread(links),
                                        "through TCP, or too few cores? --mca btl self,vader on one host; "
                                        "ranks that share cores: launch/run"}
                              : Finding{Health::ok, "MPI", spread(links), ""});
}

void look_at_nccl(const MpiSession& mpi, int device, [[maybe_unused]] Findings& out) {
  std::vector<int> devices(static_cast<size_t>(mpi.size()));
  allgather(mpi.world(), &device, sizeof device, devices.data(), deadline_in(kTimeout), "who has a GPU");
  if (mpi.size() < 2 || std::count_if(devices.begin(), devices.end(), [](int d) { return d < 0; }) > 0)
    return;
#if SLIP_HAVE_CUDA
  if (cuda_device_count() < mpi.local_size()) {
    if (mpi.rank() == 0)
      out.push_back(
          {Health::ok, "NCCL", "not tried: ranks share a GPU, their tensors go through host memory", ""});
    return;
  }
  const CudaQueue queue(device);
  std::vector<std::pair<int, int>> pairs;
  const int n = mpi.size();
  for (int from = 0; from < (n == 2 ? 1 : n); ++from) pairs.push_back({from, (from + 1) % n});
  const Deadline start = deadline_in(kTimeout);
  NcclTransport transport(mpi.world().dup("doctor", start), pairs, start);
  const Buffer buffer(Place::device, kBytes);
  const std::vector<Link> links = ring(mpi, [&](bool sends, int peer) {
    const Fence fence = transport.fence(queue.queue());
    const Transfer t = sends ? transport.post_send(peer, buffer.as<char>(), kBytes, fence)
                             : transport.post_recv(peer, buffer.as<char>(), kBytes, fence);
    wait(transport, t, peer, deadline_in(kTimeout), "64 MiB between GPUs");
  });
  if (mpi.rank() != 0) return;
  const double slowest = std::min_element(links.begin(), links.end(), [](const Link& a, const Link& b) {
                           return a.gb_s < b.gb_s;
                         })->gb_s;
  out.push_back(
      slowest < 20 && mpi.size() == mpi.local_size()
          ? Finding{Health::warn, "NCCL", spread(links),
                    "not over NVLink: nvidia-smi topo -m; unset NCCL_P2P_DISABLE; in a container --ipc=host"}
          : Finding{Health::ok, "NCCL", spread(links), ""});
#endif
}

}  // namespace slip
