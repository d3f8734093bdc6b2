#include "apps/decode_ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "apps/version.hpp"
#include "comm/collectives.hpp"
#include "comm/heartbeat.hpp"
#include "core/log.hpp"

namespace slip {

std::unique_ptr<MpiSession> decode_session(int& argc, char**& argv) {
  const LauncherEnv env = launcher_env([](const char* name) -> const char* { return std::getenv(name); });
  if (std::max({env.ompi_size, env.pmi_size, env.slurm_step_tasks}) <= 1) return nullptr;
  auto mpi = std::make_unique<MpiSession>(argc, argv, env);
  log_init(mpi->rank(), mpi->size());
  mpi->keep(start_heartbeat(*mpi, {}));
  return mpi;
}

int on_all_ranks(const Comm* comm, double timeout_s, const std::function<void()>& read) {
  if (comm == nullptr) {
    read();
    return kOk;
  }
  Verdict mine;
  if (comm->rank() == 0) {
    try {
      read();
    } catch (const Error& e) {
      mine = {e.exit_code(), e.what()};
    }
  }
  const Verdict verdict = agree(*comm, mine, deadline_in(timeout_s), "the check of options and files");
  if (verdict.code != kOk) {
    if (comm->rank() == 0) log_error(verdict.message);
    return verdict.code;
  }
  if (comm->rank() == 0) return kOk;
  log_quiet_terminal(true);  // rank 0 has read the same and has said what there is to say
  read();
  log_quiet_terminal(false);
  return kOk;
}

GpuChoice settle_ranks(const MpiSession* mpi, AnswerOptions& o) {
  if (mpi == nullptr) {
    o.settle();
    return {};
  }
  const Deadline start = deadline_in(60);
  const int wrong = settle(
      *mpi, [&] { o.settle(); }, start, "the options of the ranks");
  if (wrong != kOk) return {.code = wrong};
  Facts facts = version_facts();
  facts.emplace_back("--device", o.device == Device::cpu ? "cpu" : "cuda");
  facts.emplace_back("--precision", o.precision);
  const int code = settle_facts(*mpi, facts, start);
  return code != kOk ? GpuChoice{.code = code} : settle_gpus(*mpi, o.device, o.share_gpu, start);
}

}  // namespace slip
