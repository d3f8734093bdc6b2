// `plan`: what a run of so many ranks would do, without starting it.
#include <fmt/format.h>

#include <filesystem>
#include <iostream>

#include "apps/commands.hpp"
#include "apps/run_options.hpp"
#include "kernels/cuda_queue.hpp"
#include "launch/run.hpp"

namespace slip {
namespace fs = std::filesystem;

int run_plan(const Arguments& arguments) {
  RunArguments a;
  int64_t ranks = 1;
  bool json = false;
  Options options("plan", "--config FILE --ranks N [--json]",
                  "Shows the roles of N ranks, who sends to whom, FLOPs per row on each side, the expected "
                  "balance and the memory of a rank\n"
                  "by name. Reads headers and lengths, no weights; needs no MPI.");
  options.need("config", &a.config, "configuration file (INI)")
      .list("set", &a.sets, "key=value over the file; may be repeated")
      .number("ranks", &ranks, "ranks of the run")
      .text("device", &a.device, "auto, cpu or cuda; cuda needs no GPU here")
      .flag("json", &json, "print JSON")
      .flag("print-config", &a.print_config, "print the resolved configuration and stop");
  if (!options.parse(arguments)) return kOk;
  if (ranks < 1 || ranks > 100000) fail_usage(fmt::format("--ranks: {} is not between 1 and 100000", ranks));
  if (a.print_config) {
    std::cout << print_config(load_config(a.config, a.sets));
    return kOk;
  }
  const bool elsewhere = a.device == "cuda" && SLIP_HAVE_CUDA && cuda_device_count() == 0;
  if (elsewhere) a.device = "cpu";
  RunOptions o = run_options(a);
  if (elsewhere) o.device = Device::cuda;  // nothing is computed
  // Memory follows from the architecture; a folder without weights is enough.
  const fs::path target = o.config.target.path;
  o.synthetic =
      !fs::exists(target / "model.safetensors") && !fs::exists(target / "model.safetensors.index.json");
  const RunInputs in = read_inputs(o);
  const Plan plan = plan_run(o, in, static_cast<int>(ranks));
  std::cout << (json ? plan_json(plan) : plan_text(plan) + plan_memory_text(plan)) << "\n";
  return kOk;
}

}  // namespace slip
