// `bench ops`: every operation alone, cold L2.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "apps/bench_cases.hpp"

namespace slip {

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (const Op<float>& op : all_ops<float>()) names.emplace_back(op.name);
  return names;
}

template <class T> void bench_ops(Bench& b, const std::string& shape) {
  const StepShape s = make_step_shape(b.options, shape);
  const std::vector<std::string>& asked = b.options.names;
  for (const Op<T>& op : all_ops<T>()) {
    if (!asked.empty() && std::find(asked.begin(), asked.end(), op.name) == asked.end()) continue;
    std::map<std::string, double> per_flop;
    for (const BenchCase& c : op.cases(s, b.queue)) {
      Arena arena(b.queue.device);
      const Work work = c.prepare(arena);
      BenchRow row{"ops",   shape,   c.op, c.name, c.dims, measure(b.queue, b.repeats(20, true), work),
                   c.flops, c.bytes, {}};
      if (c.per_step > 0) row.more.emplace_back("per_step", c.per_step);
      if (c.flops > 0) per_flop[c.name] = row.time.median_ms / c.flops;
      if (const auto base = per_flop.find(c.against); base != per_flop.end()) {
        const double ratio = per_flop[c.name] / base->second;
        row.more.emplace_back("per_pair_ratio", ratio);
        row.note = fmt::format("{:.3f} x the time per live pair of {}", ratio, c.against);
      }
      report(b, row);
    }
  }
}

template void bench_ops<float>(Bench&, const std::string&);
#if SLIP_HAVE_CUDA
template void bench_ops<Bf16>(Bench&, const std::string&);
#endif

}  // namespace slip
