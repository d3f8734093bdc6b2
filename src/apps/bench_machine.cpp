// The machine a timing was taken on: its name, clocks, and what it can do at most.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>

#include "apps/bench.hpp"
#include "device/arena.hpp"
#include "kernels/cuda_queue.hpp"
#include "kernels/fill.hpp"
#include "kernels/matmul.hpp"
#if SLIP_HAVE_CUDA
#include <cuda_runtime.h>

#include "device/cuda.hpp"
#endif

namespace slip {
namespace {

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(": ") + 2);
  }
  return "CPU";
}

#if SLIP_HAVE_CUDA
// What nvidia-smi says of the current device; nothing where it is not installed.
std::vector<std::pair<std::string, double>> query_clocks() {
  int device = 0;
  char bus[32] = {};
  check(cudaGetDevice(&device));
  check(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
  const std::string command = fmt::format(
      "nvidia-smi -i {} --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu "
      "--format=csv,noheader,nounits 2>/dev/null",
      bus);
  std::vector<std::pair<std::string, double>> out;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  if (!pipe) return out;
  char line[256] = {};
  if (fgets(line, sizeof line, pipe.get()) == nullptr) return out;
  std::istringstream values(line);
  for (const char* name : {"sm_mhz", "memory_mhz", "power_w", "temperature_c"}) {
    double value = 0;
    char comma = 0;
    if (!(values >> value)) break;
    out.emplace_back(name, value);
    values >> comma;
  }
  return out;
}
#endif

}  // namespace

Machine describe_machine(const Queue& q, const std::function<void()>& load) {
  if (q.on_cpu()) return {cpu_name(), {}};
#if SLIP_HAVE_CUDA
  int device = 0;
  check(cudaGetDevice(&device));
  for (int i = 0; i < 1000; ++i) load();  // a second or more of work, so that the clocks are those of work
  Machine m{cuda_device_name(device), query_clocks()};
  synchronize(q);
  return m;
#else
  static_cast<void>(load);
  fail("this build has no CUDA back end");
#endif
}

int64_t device_bytes_in_use() {
#if SLIP_HAVE_CUDA
  if (cuda_device_count() > 0) {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    return static_cast<int64_t>(total - free);
  }
#endif
  return 0;
}

Repeats Bench::repeats(int64_t count, bool flushed) const {
  return {options.warmup >= 0 ? options.warmup : 3, options.repeat > 0 ? options.repeat : count,
          flushed && flush.bytes() > 0 ? &flush : nullptr};
}

template <class T> Bench make_bench(const BenchOptions& options, const Queue& q) {
  const bool cpu = q.on_cpu();
  Bench b{.options = options,
          .queue = q,
          .precision = options.fp8      ? "fp8"
                       : sizeof(T) == 2 ? "bf16"
                                        : "fp32"};
  const int64_t side = cpu ? 1024 : sizeof(T) == 2 ? 8192 : 4096, copied = cpu ? 64 << 20 : 2ll << 30;
  {
    Arena arena(q.device);
    const auto matrix = [&](const char* name) {
      const View2<T> m = arena.take2<T>(name, side, side);
      fill_random<T>({m.data, side * side, 0, 1, 1, static_cast<uint64_t>(*name)}, q);
      return m;
    };
    const Matmul<T, T> product{Product::nt, matrix("a"), matrix("b"), matrix("c")};
    const auto run = [&] { matmul(product, q); };
    const Timing t = measure(q, {3, cpu ? 5 : 20}, run);
    b.peak_tflops = matmul_flops(product) / t.median_ms * 1e-9;
    b.machine = describe_machine(q, run);
  }
  {
    Arena arena(q.device);
    char *from = arena.take<char>("from", copied), *to = arena.take<char>("to", copied);
    const Timing t = measure(q, {2, cpu ? 5 : 20}, [&] { copy_on_device(to, from, copied, q); });
    b.peak_gb_s = 2.0 * static_cast<double>(copied) / t.median_ms * 1e-6;
  }
  if (!cpu) b.flush = Buffer(Place::device, 256 << 20);  // several times the L2 of any GPU we know
  return b;
}

template Bench make_bench<float>(const BenchOptions&, const Queue&);
#if SLIP_HAVE_CUDA
template Bench make_bench<Bf16>(const BenchOptions&, const Queue&);
#endif

}  // namespace slip
