// `dump`: one rank of a job that writes feature shards.
#include <cstdlib>
#include <iostream>

#include "apps/commands.hpp"
#include "apps/run_options.hpp"
#include "core/log.hpp"
#include "launch/run_dump.hpp"

namespace slip {

int run_dump_command(const Arguments& arguments, int& argc, char**& argv) {
  RunArguments a;
  Options options(
      "dump", "--config FILE [--set key=value]...",
      "Writes the target's hidden states after the drafter's layers, for the documents of data.tokens, as\n"
      "feature shards into dump.dir (data/FORMAT.md, chapter 2). Every rank runs the target and writes its "
      "own\n"
      "shards. Run again after a kill or a stop, it goes on: documents in listed shards are not computed "
      "again.");
  options.need("config", &a.config, "configuration file (INI)")
      .list("set", &a.sets, "key=value over the file; may be repeated")
      .text("device", &a.device, "auto (a GPU if one is visible), cpu or cuda")
      .flag("share-gpu", &a.share_gpu, "let ranks share a GPU")
      .flag("synthetic-weights", &a.synthetic, "a made-up target from its config.json alone, for timing")
      .flag("print-config", &a.print_config, "print the resolved configuration and stop")
      .footer(configuration_help());
  if (!options.parse(arguments)) return kOk;
  if (a.print_config) {
    std::cout << print_config(load_config(a.config, a.sets, ConfigUse::dump));
    return kOk;
  }
  MpiSession mpi(argc, argv, launcher_env([](const char* name) -> const char* { return std::getenv(name); }));
  const Deadline start = deadline_in(kStart_s);
  RunOptions o;
  if (const int code = settle(
          mpi, [&] { o = run_options(a, ConfigUse::dump); }, start, "the check of options and configuration"))
    return code;
  if (const int code = settle_facts(mpi, facts_of(a, o), start)) return code;
  log_init(mpi.rank(), mpi.size());
  mpi.keep(start_heartbeat(mpi, heartbeat_times(o.config.comm)));
  return run_dump(o, mpi);
}

}  // namespace slip
