// `train`: one rank of a training run.
#include <fmt/format.h>

#include <cstdlib>
#include <iostream>

#include "apps/commands.hpp"
#include "apps/run_options.hpp"
#include "apps/version.hpp"
#include "comm/heartbeat.hpp"
#include "core/log.hpp"
#include "launch/run.hpp"
#include "launch/start.hpp"

namespace slip {

RunOptions run_options(const RunArguments& a, ConfigUse use) {
  RunOptions o;
  o.config = load_config(a.config, a.sets, use);
  o.program = program_text();
  o.device = choose_device_kind(a.device);
  o.resume = a.resume;
  o.extend = a.extend;
  o.allow_changes = a.allow_changes;
  o.share_gpu = a.share_gpu;
  o.synthetic = a.synthetic;
  o.publish = a.publish;
  return o;
}

HeartbeatTimes heartbeat_times(const CommConfig& comm) {
  // A rank without progress gives itself up before the others give up waiting for it: it knows where it was.
  return {.beat_s = comm.heartbeat_s, .dead_after_s = comm.dead_after_s, .stall_s = 0.8 * comm.timeout_s};
}

Facts facts_of(const RunArguments& a, const RunOptions& o) {
  Facts facts = version_facts();
  facts.emplace_back("--device", o.device == Device::cpu ? "cpu" : "cuda");
  facts.emplace_back("--resume", a.resume);
  facts.emplace_back("--extend", fmt::format("{}", a.extend));
  for (const auto& [name, given] : {std::pair{"--allow-changes", a.allow_changes},
                                    {"--share-gpu", a.share_gpu},
                                    {"--synthetic-weights", a.synthetic},
                                    {"--publish-synthetic", a.publish}})
    facts.emplace_back(name, given ? "given" : "not given");
  fields(o.config, [&](const char* key, const auto& value, const char*) {
    facts.emplace_back(key, fmt::format("{}", value));
  });
  return facts;
}

int run_train(const Arguments& arguments, int& argc, char**& argv) {
  RunArguments a;
  Options options("train", "--config FILE [--set key=value]... [--resume none|auto|DIR]",
                  "Trains a drafter. Every process is a rank: with one, it runs target and drafter in turn; "
                  "with more, roles.* says who\n"
                  "does what. Start several with mpirun, srun or launch/run.");
  options.need("config", &a.config, "configuration file (INI)")
      .list("set", &a.sets, "key=value over the file; may be repeated")
      .text("resume", &a.resume,
            "none: start anew, in an unused run directory; auto: continue the newest complete checkpoint, or "
            "start; or a checkpoint's folder")
      .number("extend", &a.extend, "with --resume: so many steps more than the run had")
      .flag("allow-changes", &a.allow_changes, "resume although the configuration contradicts the checkpoint")
      .text("device", &a.device, "auto (a GPU if one is visible), cpu or cuda")
      .flag("share-gpu", &a.share_gpu,
            "let ranks share a GPU; features and gradients then travel through host memory")
      .flag("synthetic-weights", &a.synthetic,
            "made-up weights from the two config.json alone, for timing; nothing is saved")
      .flag("publish-synthetic", &a.publish, "with --synthetic-weights: write checkpoints all the same")
      .flag("print-config", &a.print_config, "print the resolved configuration and stop")
      .footer(configuration_help());
  if (!options.parse(arguments)) return kOk;
  if (a.extend < 0) fail_usage(fmt::format("--extend: {} is negative", a.extend));
  if (a.print_config) {
    std::cout << print_config(load_config(a.config, a.sets));
    return kOk;
  }
  std::string command_line;
  for (int i = 0; i < argc; ++i) command_line += fmt::format("{}{}", i > 0 ? " " : "", argv[i]);
  const LauncherEnv env = launcher_env([](const char* name) -> const char* { return std::getenv(name); });
  MpiSession mpi(argc, argv, env);
  const Deadline start = deadline_in(kStart_s);
  RunOptions o;
  if (const int code = settle(
          mpi, [&] { o = run_options(a); }, start, "the check of options and configuration"))
    return code;
  if (const int code = settle_facts(mpi, facts_of(a, o), start)) return code;
  o.command_line = command_line;
  o.versions = version_text();
  log_init(mpi.rank(), mpi.size());
  mpi.keep(start_heartbeat(mpi, heartbeat_times(o.config.comm)));
  return run_training(o, mpi);
}

}  // namespace slip
