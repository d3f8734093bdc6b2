#include <fmt/format.h>
#include <hdf5.h>
#include <mpi.h>

#include <cstdlib>
#include <iostream>
#include <new>
#include <string_view>
#include <vector>

#include "apps/commands.hpp"
#include "apps/dump_commands.hpp"
#include "apps/version.hpp"
#include "comm/launcher.hpp"
#include "comm/mpi.hpp"
#include "core/log.hpp"
#include "core/nearest.hpp"
#include "device/cpu_level.hpp"
#include "launch/signals.hpp"

namespace slip {
namespace {

const char* kHelp = R"(usage: slipstream COMMAND [options]

slipstream trains DFlash drafters for frozen target models. One process is one rank: start several with mpirun,
srun or launch/run.

  train     train a drafter from a configuration file
  plan      show roles, costs, balance and memory of a run before starting it
  dump      write the target's hidden states of token shards as feature shards (HDF5), to look into or train from
  exchange  dumps to and from the hidden-state files of speculators
  decode    speculative decoding of prompts: acceptance length, target calls saved, text
  generate  answers of the target to prompts, as token shards to train on
  features  write the target's hidden states after chosen layers, for comparing with another implementation
  step      one training step on given weights and data, for comparing with another trainer
  inspect   show token shards, feature dumps, safetensors files, models and checkpoints
  report    a page in pictures about one run or several
  doctor    is this machine, with this launcher, fit to train? each complaint with its remedy
  bench     time operations, a drafter's step, a target's capture, the wire between ranks, feature shards on a disk

slipstream COMMAND --help describes one; slipstream --version lists what it was built with.

exit codes: 0 done; 1 failed; 2 wrong usage or configuration; 3 an input file is missing or bad;
            4 a peer rank failed; 75 stopped by a signal after saving: run again with --resume auto to go on
)";

int run(int& argc, char**& argv) {
  const Arguments all(argv + 1, argv + argc);
  if (all.empty() || all[0] == "--help" || all[0] == "-h" || all[0] == "help") {
    (all.empty() ? std::cerr : std::cout) << kHelp;
    return all.empty() ? kUsage : kOk;
  }
  if (all[0] == "--version") {
    std::cout << version_text();
    return kOk;
  }
  const Arguments rest(all.begin() + 1, all.end());
  cpu_level_check();
  if (all[0] == "train") return run_train(rest, argc, argv);
  if (all[0] == "dump") return run_dump_command(rest, argc, argv);
  if (all[0] == "plan") return run_plan(rest);
  if (all[0] == "features") return run_features(rest);
  if (all[0] == "step") return run_step(rest);
  if (all[0] == "inspect") return run_inspect(rest);
  if (all[0] == "report") return run_report(rest);
  if (all[0] == "doctor") return run_doctor(rest, argc, argv);
  if (all[0] == "decode") return run_decode(rest, argc, argv);
  if (all[0] == "generate") return run_generate(rest, argc, argv);
  if (all[0] == "bench" && !rest.empty() && rest[0] == "wire")
    return run_bench_wire({rest.begin() + 1, rest.end()}, argc, argv);
  if (all[0] == "bench" && !rest.empty() && rest[0] == "dump")
    return run_bench_dump({rest.begin() + 1, rest.end()});
  if (all[0] == "bench") return run_bench(rest);
  if (all[0] == "exchange") return run_exchange(rest);
  const std::vector<std::string> known = {"train",    "plan",     "dump",   "exchange", "decode",
                                          "generate", "features", "step",   "inspect",  "report",
                                          "doctor",   "bench",    "--help", "--version"};
  const std::string near = nearest(all[0], known);
  fail_usage(fmt::format(
      "unknown command '{}'; {}", all[0],
      near.empty() ? fmt::format("there are {}", fmt::join(known, ", "))
                   : fmt::format("the nearest known one is '{}' (slipstream --help lists them)", near)));
}

// An error of one rank takes the job down, or its peers would wait for it.
int give_up(const std::string& message, int code) {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  // Until MPI is started every rank reads the same command line: one says what is wrong with it.
  const bool said_by_another =
      !initialized && code == kUsage &&
      launcher_env([](const char* name) -> const char* { return std::getenv(name); }).rank > 0;
  if (said_by_another) return code;
  if (!message.empty()) log_error(message);  // else another rank has said it
  MPI_Finalized(&finalized);
  if (initialized && !finalized) abort_job(code);
  return code;
}

}  // namespace
}  // namespace slip

int main(int argc, char** argv) {
  // Before MPI, which takes a while to start: a signal that comes then is remembered.
  if (argc > 1 && (argv[1] == std::string_view("train") || argv[1] == std::string_view("dump")))
    slip::catch_stop_signals();
  // Before any other call of HDF5: its own closing at exit crashes where a write has failed. Owners close
  // what is open.
  H5dont_atexit();
  try {
    return slip::run(argc, argv);
  } catch (const slip::Error& e) {
    // The place in the source helps with failures of the program, not with what the user typed.
    const bool internal = e.exit_code() == slip::kFailed;
    return slip::give_up(
        internal ? fmt::format("{} ({}:{})", e.what(), e.where().file_name(), e.where().line()) : e.what(),
        e.exit_code());
  } catch (const std::bad_alloc&) {
    return slip::give_up("out of host memory", slip::kFailed);
  } catch (const std::exception& e) {
    return slip::give_up(e.what(), slip::kFailed);
  }
}
