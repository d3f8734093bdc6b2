#include <fmt/format.h>

#include <filesystem>

#include "comm/collectives.hpp"
#include "comm/mpi_transport.hpp"
#include "core/log.hpp"
#include "kernels/cuda_queue.hpp"
#include "launch/rank.hpp"
#include "launch/run.hpp"
#include "launch/signals.hpp"

namespace slip {
namespace {

#if SLIP_HAVE_CUDA
bool uses_bf16(const RunOptions& o) { return o.device == Device::cuda && o.config.train.precision == "bf16"; }
#endif

template <class T> int run_role(const RunOptions& o, const RunInputs& in, const Plan& plan, Ranks& ranks, const Queue& queue) {
  if (plan.role(ranks.mpi->rank()) != Role::target) return run_drafter<T>(o, in, plan, ranks, queue);
  run_target<T>(o, in, plan, ranks, queue);
  return kOk;
}

// One rank looks, all follow: what is wrong is said once.
Verdict look(const RunOptions& o, int ranks, std::optional<RunInputs>& in) {
  try {
    in.emplace(read_inputs(o));
    plan_run(o, *in, ranks);
    check_everything(o, *in);
    return {};
  } catch (const Error& e) {
    return {e.exit_code(), e.what()};
  }
}

}  // namespace

Plan plan_run(const RunOptions& o, const RunInputs& in, int ranks) {
  PlanCosts costs = plan_costs(o, in);
  const Plan bare = make_plan(ranks, o.config.roles, costs);
#if SLIP_HAVE_CUDA
  if (uses_bf16(o)) {
    costs.drafter_memory = drafter_memory<Bf16>(o, in, bare);
    if (ranks > 1) costs.target_memory = target_memory<Bf16>(o, in, bare);
    return make_plan(ranks, o.config.roles, costs);
  }
#endif
  costs.drafter_memory = drafter_memory<float>(o, in, bare);
  if (ranks > 1) costs.target_memory = target_memory<float>(o, in, bare);
  return make_plan(ranks, o.config.roles, costs);
}

int run_training(const RunOptions& o, const MpiSession& mpi) {
  log_init(mpi.rank(), mpi.size());
  catch_stop_signals();
  const Deadline start = deadline_in(o.config.comm.timeout_s);
  std::optional<RunInputs> in;
  const Verdict mine = mpi.rank() == 0 ? look(o, mpi.size(), in) : Verdict{};
  const Verdict verdict = agree(mpi.world(), mine, start, "the check of configuration and files");
  if (verdict.code != 0) {
    if (mpi.rank() == 0) log_error(verdict.message);
    return verdict.code;
  }
  if (!in) in.emplace(read_inputs(o));
  if (in->state.step >= in->state.total_steps) {
    log_info(fmt::format("{} is finished: {} steps; go on with --extend STEPS", *in->checkpoint, in->state.step));
    return kOk;
  }
  const Plan plan = plan_run(o, *in, mpi.size());
  if (mpi.rank() == 0) std::filesystem::create_directories(o.config.log.dir + "/log");
  barrier(mpi.world(), start, "the run directory");
  log_to_file(fmt::format("{}/log/rank-{:04}.log", o.config.log.dir, mpi.rank()));
  log_info(plan_text(plan));
  log_info(fmt::format("{} documents, {} tokens; {} left out for want of supervision; {} steps{}", in->state.documents, in->state.tokens,
                       in->corpus->dropped(), in->state.total_steps, in->checkpoint ? fmt::format(", from {}", *in->checkpoint) : ""));

  Ranks ranks{.mpi = &mpi};
  if (mpi.size() > 1) {
    ranks.control = mpi.world().dup("mailbox control", start);
    ranks.drafters = mpi.world().split(plan.role(mpi.rank()) == Role::target ? -1 : 0, "drafters", start);
    ranks.transport = std::make_unique<MpiTransport>(mpi.world().dup("features", start));
  }
  if (o.device == Device::cpu) return run_role<float>(o, *in, plan, ranks, Queue{});
#if SLIP_HAVE_CUDA
  if (mpi.size() > 1) fail_usage("--device cuda with several ranks is not in this version; use one rank, or --device cpu");
  const CudaQueue cuda(choose_device(mpi.local_rank(), mpi.local_size(), cuda_device_count()));
  if (uses_bf16(o)) return run_role<Bf16>(o, *in, plan, ranks, cuda.queue());
  return run_role<float>(o, *in, plan, ranks, cuda.queue());
#else
  fail("this build has no CUDA back end");
#endif
}

}  // namespace slip
