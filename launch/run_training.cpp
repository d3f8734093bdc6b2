#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "comm/collectives.hpp"
#include "comm/mpi_transport.hpp"
#include "core/log.hpp"
#include "kernels/cuda_queue.hpp"
#include "launch/gradient_sum.hpp"
#include "launch/rank.hpp"
#include "launch/run.hpp"
#include "launch/start.hpp"
#include "launch/training_dump.hpp"
#if SLIP_HAVE_CUDA
#include "comm/nccl_transport.hpp"
#include "comm/staged_transport.hpp"
#endif

namespace slip {
namespace {

#if SLIP_HAVE_CUDA
bool uses_bf16(const RunOptions& o) { return o.device == Device::cuda && o.config.train.precision != "fp32"; }
#endif

template <class T>
int run_role(const RunOptions& o, const RunInputs& in, const Plan& plan, Ranks& ranks, const Queue& queue) {
  int code = kOk;
  const bool runs_target = plan.role(ranks.mpi->rank()) != Role::drafter;
  if (ranks.dump != nullptr && runs_target) ranks.dump->start(queue.device);
  if (plan.role(ranks.mpi->rank()) == Role::target) {
    run_target<T>(o, in, plan, ranks, queue);
  } else {
    code = run_drafter<T>(o, in, plan, ranks, queue);
  }
  if (ranks.dump != nullptr) ranks.dump->finish(ranks.mpi->peers(), o.config.comm.timeout_s);
  ranks.phases->at_same_step("exit");
  barrier(ranks.mpi->world(), deadline_in(o.config.comm.timeout_s),
          "the end of the run");  // one drafter may still save
  if (ranks.dump != nullptr) ranks.dump->close_folder();
  return code;
}

// One rank looks, all follow: what is wrong is said once.
Verdict look(const RunOptions& o, int ranks, std::optional<RunInputs>& in) {
  try {
    in.emplace(read_inputs(o));
    plan_run(o, *in, ranks);
    check_everything(o, *in);
    prepare_training_dump(o, *in);
    return {};
  } catch (const Error& e) {
    return {e.exit_code(), e.what()};
  }
}

#if SLIP_HAVE_CUDA
void connect_gpus(const CommConfig& comm, const Plan& plan, Ranks& ranks, bool shared,
                  const Deadline& deadline) {
  const Comm& world = ranks.mpi->world();
  if (shared) {
    ranks.transport = std::make_unique<StagedTransport>(world.dup("features", deadline));
    return;
  }
  std::vector<std::pair<int, int>> pairs;  // none where all features come from disk
  for (int t = plan.first_target(); t < plan.ranks; ++t) {
    for (int d = 0; d < plan.drafters; ++d) pairs.push_back({t, d});
  }
  if (!plan.offline)
    ranks.transport = std::make_unique<NcclTransport>(world.dup("features", deadline), pairs, deadline,
                                                      static_cast<int>(comm.feature_blocks));
  if (!ranks.drafters || ranks.drafters.size() == 1) return;
  const auto blocks = static_cast<int>(comm.sum_blocks);
  ranks.gradients = std::make_unique<NcclComm>(ranks.drafters, "gradients", deadline, blocks);
  ranks.last_gradients = std::make_unique<NcclComm>(ranks.drafters, "last gradients", deadline,
                                                    GradientSum<float>::last_blocks(blocks));
}
#endif

}  // namespace

Plan plan_run(const RunOptions& o, const RunInputs& in, int ranks) {
  PlanCosts costs = plan_costs(o, in);
  const auto noted = [&](Plan plan) {
    if (o.config.data.tokens.empty() && !plan.offline && ranks > 1) {
      plan.notes.push_back(fmt::format(
          "all features come from shards: {} target rank{} for eval.prompts alone, and the others train",
          plan.targets, plan.targets == 1 ? " is there" : "s are there"));
    }
    return plan;
  };
  const Plan bare = make_plan(ranks, o.config.roles, costs);
#if SLIP_HAVE_CUDA
  if (uses_bf16(o)) {
    costs.drafter_memory = drafter_memory<Bf16>(o, in, bare);
    if (ranks > 1 && !bare.offline) costs.target_memory = target_memory<Bf16>(o, in, bare);
    return noted(make_plan(ranks, o.config.roles, costs));
  }
#endif
  costs.drafter_memory = drafter_memory<float>(o, in, bare);
  if (ranks > 1 && !bare.offline) costs.target_memory = target_memory<float>(o, in, bare);
  return noted(make_plan(ranks, o.config.roles, costs));
}

int run_training(const RunOptions& o, const MpiSession& mpi) {
  Phases phases(mpi.heartbeat(), mpi.rank(), std::getenv("SLIP_TEST_FAULT"));
  phases.at(0, "start");
  const Deadline start = deadline_in(o.config.comm.timeout_s);
  const GpuChoice gpu = settle_gpus(mpi, o.device, o.share_gpu, start);  // before anything is written
  if (gpu.code != 0) return gpu.code;
  if (o.device == Device::cuda && o.config.train.precision == "fp8") {
    if (const int code = settle_fp8(mpi, gpu.device, start); code != 0) return code;
  }
  std::optional<RunInputs> in;
  const Verdict mine = mpi.rank() == 0 ? look(o, mpi.size(), in) : Verdict{};
  const Verdict verdict = agree(mpi.world(), mine, start, "the check of configuration and files");
  if (verdict.code != 0) {
    if (mpi.rank() == 0) log_error(verdict.message);
    return verdict.code;
  }
  if (!in) {
    log_quiet_terminal(true);  // rank 0 has read the same and has said what there is to say
    in.emplace(read_inputs(o));
    log_quiet_terminal(false);
  }
  if (in->state.step >= in->state.total_steps) {
    log_info(
        fmt::format("{} is finished: {} steps; go on with --extend STEPS", *in->checkpoint, in->state.step));
    return kOk;
  }
  const Plan plan = plan_run(o, *in, mpi.size());
  if (mpi.rank() == 0) std::filesystem::create_directories(o.config.log.dir + "/log");
  barrier(mpi.world(), start, "the run directory");
  log_to_file(fmt::format("{}/log/rank-{:04}.log", o.config.log.dir, mpi.rank()));
  log_info(plan_text(plan));
  log_info(fmt::format("{} documents, {} tokens; {} left out for want of supervision; {} steps{}",
                       in->state.documents, in->state.tokens, in->corpus->dropped(), in->state.total_steps,
                       in->checkpoint ? fmt::format(", from {}", *in->checkpoint) : ""));

  std::optional<TrainingDump> dump;
  if (!o.config.dump.dir.empty()) {
    dump.emplace(o, *in, plan, mpi.rank());
    barrier(mpi.world(), start, "the plan of the dump");  // nobody writes while another reads what is there
  }

  phases.at(in->state.step, "load");
  Ranks ranks{.mpi = &mpi, .phases = &phases, .dump = dump ? &*dump : nullptr};
  if (mpi.size() > 1) {
    ranks.control = mpi.world().dup("mailbox control", start);
    ranks.drafters = mpi.world().split(plan.role(mpi.rank()) == Role::target ? -1 : 0, "drafters", start);
    if (in->prompts) {
      const bool member = plan.role(mpi.rank()) == Role::target || ranks.drafters.rank() == 0;
      ranks.decoders = mpi.world().split(member ? 0 : -1, "decoders", start);
    }
  }
  if (o.device == Device::cpu) {
    if (mpi.size() > 1) ranks.transport = std::make_unique<MpiTransport>(mpi.world().dup("features", start));
    return run_role<float>(o, *in, plan, ranks, Queue{});
  }
#if SLIP_HAVE_CUDA
  const CudaQueue cuda(gpu.device);
  log_info(fmt::format("rank {} on {}: GPU {}, {}{}", mpi.rank(), host_name(), gpu.device,
                       cuda_device_name(gpu.device), gpu.shared ? ", shared" : ""));
  ranks.share_gpu = gpu.shared;
  if (mpi.size() > 1) connect_gpus(o.config.comm, plan, ranks, gpu.shared, start);
  if (uses_bf16(o)) return run_role<Bf16>(o, *in, plan, ranks, cuda.queue());
  return run_role<float>(o, *in, plan, ranks, cuda.queue());
#else
  fail("this build has no CUDA back end");
#endif
}

}  // namespace slip
