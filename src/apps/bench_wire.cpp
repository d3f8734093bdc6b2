// `bench wire`: what the ranks of this job move between each other, through the same transports as a run: a
// tensor from the last rank to the first, and a sum over all ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/commands.hpp"
#include "apps/version.hpp"
#include "comm/collectives.hpp"
#include "comm/mpi_transport.hpp"
#include "core/log.hpp"
#include "device/buffer.hpp"
#include "kernels/cuda_queue.hpp"
#include "launch/plan.hpp"
#if SLIP_HAVE_CUDA
#include "comm/nccl_transport.hpp"
#include "comm/staged_transport.hpp"
#endif

namespace slip {
namespace {

constexpr double kTimeout = 120;
constexpr int64_t kSizes[] = {int64_t{1} << 16, int64_t{1} << 20, int64_t{1} << 24, int64_t{1} << 28};

struct Wire {
  const MpiSession& mpi;
  Queue queue;
  std::string name;  // mpi, nccl, or staged: ranks that share a GPU
  std::unique_ptr<Transport> transport;
#if SLIP_HAVE_CUDA
  std::unique_ptr<NcclComm> sum;
#endif
  double copy_gb_s = 0;  // of this rank's own memory, the limit of a wire inside a machine
  std::string out;
  int blocks = 0;  // thread blocks of NCCL; 0: its choice
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Milliseconds of `work`, which ends when the host knows that it is done; all ranks begin together.
template <class F> double time_ms(const Wire& w, int repeats, F&& work) {
  std::vector<double> ms;
  for (int i = -2; i < repeats; ++i) {  // two to warm up
    barrier(w.mpi.world(), deadline_in(kTimeout), "the next timing");
    const auto begin = Clock::now();
    work();
    if (i >= 0) ms.push_back(seconds_since(begin) * 1e3);
  }
  return median(ms);
}

void row(const Wire& w, const char* op, int64_t bytes, double ms, double bus_factor) {
  if (w.mpi.rank() != 0) return;
  const double gb_s = static_cast<double>(bytes) / ms * 1e-6;
  const nlohmann::ordered_json j = {{"bench", "wire"},
                                    {"op", op},
                                    {"transport", w.name},
                                    {"ranks", w.mpi.size()},
                                    {"blocks", w.blocks},
                                    {"bytes", bytes},
                                    {"median_ms", ms},
                                    {"gb_s", gb_s},
                                    {"bus_gb_s", gb_s * bus_factor},
                                    {"peak_gb_s", w.copy_gb_s},
                                    {"percent_of_peak", 100 * gb_s * bus_factor / w.copy_gb_s},
                                    {"device", w.queue.on_cpu() ? "cpu" : cuda_device_name(0)},
                                    {"commit", commit_text()}};
  std::cout << j.dump() << std::endl;
  if (!w.out.empty() && !(std::ofstream(w.out, std::ios::app) << j.dump() << "\n"))
    fail(fmt::format("--out {}: a row could not be written", w.out));
  log_info(fmt::format("{:<10} {:>11} bytes {:10.3f} ms {:9.2f} GB/s, bus {:9.2f} GB/s", op, bytes, ms, gb_s,
                       gb_s * bus_factor));
}

// What a copy inside this rank's memory moves a second, read and write counted once: the same as a wire
// counts.
double copy_rate(const Wire& w, void* a, void* b) {
  std::vector<double> ms;
  for (int i = 0; i < 7; ++i) {
    const auto begin = Clock::now();
    copy_on_device(b, a, kSizes[3] / 2, w.queue);
    synchronize(w.queue);
    ms.push_back(seconds_since(begin) * 1e3);
  }
  return static_cast<double>(kSizes[3] / 2) / median(ms) * 1e-6;
}

void connect(Wire& w, const Deadline& deadline) {
  const Comm& world = w.mpi.world();
  if (w.queue.on_cpu()) {
    w.name = "mpi";
    w.transport = std::make_unique<MpiTransport>(world.dup("bench wire", deadline));
    return;
  }
#if SLIP_HAVE_CUDA
  if (cuda_device_count() < w.mpi.local_size()) {
    w.name = "staged";
    w.transport = std::make_unique<StagedTransport>(world.dup("bench wire", deadline));
    return;
  }
  w.name = "nccl";
  w.transport = std::make_unique<NcclTransport>(world.dup("bench wire", deadline),
                                                std::vector<std::pair<int, int>>{{world.size() - 1, 0}},
                                                deadline, w.blocks);
  w.sum = std::make_unique<NcclComm>(world, "bench wire sum", deadline, w.blocks);
#endif
}

void sum(Wire& w, float* values, int64_t count, std::vector<float>& host) {
  const Deadline deadline = deadline_in(kTimeout);
#if SLIP_HAVE_CUDA
  if (w.sum) {
    allreduce_sum(*w.sum, values, count, w.queue.stream, deadline);
    return synchronize(w.queue);
  }
#endif
  if (w.queue.on_cpu())
    return allreduce_sum(w.mpi.world(), std::span(values, static_cast<size_t>(count)), deadline, "a sum");
  copy_to_host(host.data(), values, count * 4, w.queue);
  synchronize(w.queue);
  allreduce_sum(w.mpi.world(), std::span(host.data(), static_cast<size_t>(count)), deadline, "a sum");
  copy_to_device(values, host.data(), count * 4, w.queue);
  synchronize(w.queue);
}

int time_wire(Wire& w) {
  connect(w, deadline_in(kTimeout));
  const Place place = w.queue.on_cpu() ? Place::host : Place::device;
  const Buffer buffer(place, kSizes[3]);
  char* memory = buffer.as<char>();
  w.copy_gb_s = copy_rate(w, memory, memory + kSizes[3] / 2);
  std::vector<float> host(w.name == "staged" ? static_cast<size_t>(kSizes[3] / 4) : 0);
  const int last = w.mpi.size() - 1, me = w.mpi.rank();
  for (const int64_t bytes : kSizes) {
    const double ms = time_ms(w, 9, [&] {
      if (me != 0 && me != last) return;
      const int peer = me == 0 ? last : 0;
      const Fence fence = w.transport->fence(w.queue);
      const Transfer t = me == 0 ? w.transport->post_recv(peer, memory, bytes, fence)
                                 : w.transport->post_send(peer, memory, bytes, fence);
      wait(*w.transport, t, peer, deadline_in(kTimeout), "a tensor");
    });
    row(w, "send_recv", bytes, ms, 1);
  }
  const double n = w.mpi.size();
  for (const int64_t bytes : kSizes) {
    row(w, "allreduce", bytes, time_ms(w, 9, [&] { sum(w, buffer.as<float>(), bytes / 4, host); }),
        2 * (n - 1) / n);
  }
  return kOk;
}

}  // namespace

int run_bench_wire(const Arguments& arguments, int& argc, char**& argv) {
  std::string device_text = "auto", out;
  int64_t blocks = 0;
  Options options("bench wire", "[--device cpu|cuda] [--blocks N] [--out FILE]",
                  "Times tensors from the last rank to the first and sums over all ranks, by size, through "
                  "the transport that a run of\n"
                  "these ranks uses: MPI on the CPU, NCCL on GPUs, pinned host memory where ranks share one. "
                  "Start it with mpirun, 2 ranks\n"
                  "or more. The limit of each row is a copy inside one rank's memory, measured first.");
  options.text("device", &device_text, "auto, cpu or cuda")
      .number("blocks", &blocks,
              "thread blocks of NCCL, as comm.sum_blocks and comm.feature_blocks give it; 0: its choice")
      .text("out", &out, "append the JSON lines to this file");
  if (!options.parse(arguments)) return kOk;
  if (blocks < 0 || blocks > 64) fail_usage(fmt::format("--blocks: {} is not 0..64", blocks));
  const Device device = choose_device_kind(device_text);
  MpiSession mpi(argc, argv, launcher_env([](const char* name) -> const char* { return std::getenv(name); }));
  log_init(mpi.rank(), mpi.size());
  if (mpi.size() < 2) fail_usage("bench wire: one rank has nobody to send to; start it with mpirun -n 2");
  if (device == Device::cpu) {
    Wire w{.mpi = mpi, .out = out};
    return time_wire(w);
  }
#if SLIP_HAVE_CUDA
  const CudaQueue cuda(choose_device(mpi.local_rank(), mpi.local_size(), cuda_device_count(), true));
  Wire w{.mpi = mpi, .queue = cuda.queue(), .out = out, .blocks = static_cast<int>(blocks)};
  return time_wire(w);
#else
  fail("this build has no CUDA back end");
#endif
}

}  // namespace slip
