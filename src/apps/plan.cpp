// `plan`: what a run of so many ranks would do, without starting it.
#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/commands.hpp"
#include "apps/run_options.hpp"
#include "kernels/cuda_queue.hpp"
#include "launch/run.hpp"
#include "launch/run_dump.hpp"

namespace slip {
namespace fs = std::filesystem;

namespace {

std::string planned_dump(const RunOptions& o, int64_t ranks, bool json) {
  const RunInputs in = read_dump_inputs(o);
  const DumpPlan plan = plan_dump(o, in, {ranks, false, 0});
  const std::vector<Arena::Entry> memory = dump_memory(o, in);
  int64_t bytes = 0;
  for (const Arena::Entry& e : memory) bytes += e.bytes;
  const int64_t host = o.config.dump.queue_rows * plan.row_values * 2;
  if (json) {
    nlohmann::ordered_json named = nlohmann::ordered_json::object();
    for (const Arena::Entry& e : memory) named[e.name] = named.value(e.name, int64_t{0}) + e.bytes;
    const nlohmann::ordered_json out = {{"ranks", ranks},
                                        {"documents", plan.documents},
                                        {"rows", plan.rows},
                                        {"bytes", plan.bytes},
                                        {"shards", plan.shards.size()},
                                        {"bytes_there", plan.bytes_there},
                                        {"memory_bytes", bytes},
                                        {"host_memory_bytes", host},
                                        {"memory", named},
                                        {"left_out", plan.documents_left_out}};
    return out.dump(2);
  }
  std::string out =
      dump_text(o, plan) + fmt::format("\n{} rank{}, each {:.2f} MiB, and {:.2f} MiB of host memory", ranks,
                                       ranks == 1 ? "" : "s", static_cast<double>(bytes) / 0x1p20,
                                       static_cast<double>(host) / 0x1p20);
  for (const Arena::Entry& e : memory)
    out += fmt::format("\n{:>14.2f} MiB  {}", static_cast<double>(e.bytes) / 0x1p20, e.name);
  return out;
}

}  // namespace

int run_plan(const Arguments& arguments) {
  RunArguments a;
  int64_t ranks = 1;
  bool json = false, dump = false;
  Options options("plan", "--config FILE --ranks N [--dump] [--json]",
                  "Shows the roles of N ranks, who sends to whom, FLOPs per row on each side, the expected "
                  "balance and the memory of a rank\n"
                  "by name. Reads headers and lengths, no weights; needs no MPI.");
  options.need("config", &a.config, "configuration file (INI)")
      .list("set", &a.sets, "key=value over the file; may be repeated")
      .number("ranks", &ranks, "ranks of the run")
      .text("device", &a.device, "auto, cpu or cuda; cuda needs no GPU here")
      .flag("dump", &dump, "plan the command `dump`: what it writes into dump.dir, and the memory of a rank")
      .flag("json", &json, "print JSON")
      .flag("print-config", &a.print_config, "print the resolved configuration and stop");
  if (!options.parse(arguments)) return kOk;
  if (ranks < 1 || ranks > 100000) fail_usage(fmt::format("--ranks: {} is not between 1 and 100000", ranks));
  if (a.print_config) {
    std::cout << print_config(load_config(a.config, a.sets, dump ? ConfigUse::dump : ConfigUse::train));
    return kOk;
  }
  const bool elsewhere = a.device == "cuda" && SLIP_HAVE_CUDA && cuda_device_count() == 0;
  if (elsewhere) a.device = "cpu";
  RunOptions o = run_options(a, dump ? ConfigUse::dump : ConfigUse::train);
  if (elsewhere) o.device = Device::cuda;  // nothing is computed
  // Memory follows from the architecture; a folder without weights is enough.
  const fs::path target = o.config.target.path;
  o.synthetic =
      !fs::exists(target / "model.safetensors") && !fs::exists(target / "model.safetensors.index.json");
  if (dump) {
    std::cout << planned_dump(o, ranks, json) << "\n";
    return kOk;
  }
  const RunInputs in = read_inputs(o);
  const Plan plan = plan_run(o, in, static_cast<int>(ranks));
  std::cout << (json ? plan_json(plan) : plan_text(plan) + plan_memory_text(plan)) << "\n";
  return kOk;
}

}  // namespace slip
