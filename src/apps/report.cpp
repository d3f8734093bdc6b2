// `report`: runs in pictures.
#include "launch/report.hpp"

#include <fmt/format.h>

#include "apps/commands.hpp"
#include "core/log.hpp"

namespace slip {

int run_report(const Arguments& arguments) {
  std::vector<std::string> runs;
  std::string out;
  Options options(
      "report", "RUN… [--out FILE.html]",
      "Writes one HTML page about runs: loss, accuracy, acceptance length, throughput, waits, memory, "
      "settings. It needs no\nnetwork. Training writes report.html of its own run at every checkpoint; "
      "several runs are laid over one another.");
  options.positional(&runs, "run", "run directories (log.dir of `train`)")
      .text("out", &out, "the page; report.html in the first run's directory unless told");
  if (!options.parse(arguments)) return kOk;
  if (runs.empty()) fail_usage("report: at least one run directory is needed");
  if (out.empty()) out = runs[0] + "/report.html";
  write_report(runs, out);
  log_info(fmt::format("wrote {}", out));
  return kOk;
}

}  // namespace slip
