// `bench`: timings as JSON lines (README, "Commands"). What its parts share: the options, the machine with
// its measured peaks, the clock, and the row that every timing ends as.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "device/buffer.hpp"
#include "device/queue.hpp"

namespace slip {

struct BenchOptions {
  std::vector<std::string> names;  // of ops; empty: all
  std::vector<std::string> shapes;
  std::string precision, out, commit;
  int64_t tokens = 0, anchors = 0, documents = 0, rows = 0, blocks_per_pass = 0;  // 0: the shape's own
  int64_t repeat = 0, warmup = -1;                                                // the command's own
  int64_t min_percent = 0;
  bool profile = false;
  bool fp8 = false;  // the drafter's products
  bool cudnn = false;
};

// Milliseconds: of a GPU between two events of its stream, of the CPU by the clock of the thread.
struct Timing {
  double median_ms = 0, min_ms = 0, max_ms = 0;
  int64_t repeats = 0;
};
struct Repeats {
  int64_t warmup, count;
  const Buffer* flush = nullptr;  // written before every repeat, so that a GPU's L2 holds nothing of use
};
Timing measure(const Queue&, const Repeats&, const std::function<void()>& work);

// What share of a piece of work each of its parts has: `work` calls its argument with the part's name before
// every part. The median over the repeats, in the order in which the names first come.
struct PartTiming {
  std::string name;
  int64_t calls;  // of one repeat
  Timing time;    // of all of them
};
using Mark = std::function<void(const char*)>;
std::vector<PartTiming> measure_parts(const Queue&, const Repeats&,
                                      const std::function<void(const Mark&)>& work);

struct Machine {
  std::string device;
  std::vector<std::pair<std::string, double>> clocks;  // under load, where nvidia-smi says
};
// `load` is queued many times before the clocks are read.
Machine describe_machine(const Queue&, const std::function<void()>& load);
int64_t device_bytes_in_use();  // of the current GPU, by all that use it; 0 on the CPU

struct Bench {
  const BenchOptions& options;
  Queue queue;
  std::string precision;  // "bf16", "fp32", "fp8"
  Machine machine;
  double peak_tflops = 0, peak_gb_s = 0;  // a large product and a large copy, measured in this run
  Buffer flush;                           // empty on the CPU
  int64_t below = 0;                      // rows below --min-percent
  Repeats repeats(int64_t count, bool flushed) const;
};
template <class T> Bench make_bench(const BenchOptions&, const Queue&);

using Dims = std::vector<std::pair<std::string, int64_t>>;
struct BenchRow {
  std::string bench, model, op, name;
  Dims dims;
  Timing time;
  double flops = 0, bytes = 0;  // of one repeat, as the operation needs them; 0: not stated
  std::vector<std::pair<std::string, double>> more;
  std::string note = {};  // ends the readable line
};
// One JSON object on standard output and in --out, one readable line on standard error.
void report(Bench&, const BenchRow&);

std::vector<std::string> op_names();
template <class T> void bench_ops(Bench&, const std::string& shape);
template <class T> void bench_drafter(Bench&, const std::string& shape);
template <class T> void bench_target(Bench&, const std::string& shape);
template <class T> void bench_decode(Bench&, const std::string& shape);

}  // namespace slip
