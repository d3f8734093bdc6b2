#include "launch/run_dump.hpp"

#include <fmt/format.h>
#include <cstdlib>
#include <filesystem>

#include "comm/collectives.hpp"
#include "core/log.hpp"
#include "core/progress.hpp"
#include "io/durable.hpp"
#include "kernels/cuda_queue.hpp"
#include "launch/feature_dump.hpp"
#include "launch/frozen_weights.hpp"
#include "launch/rank.hpp"
#include "launch/row_table.hpp"
#include "launch/signals.hpp"
#include "launch/start.hpp"

namespace slip {
namespace {

std::string dump_rates(int64_t tokens, double seconds, const DumpStats& s) {
  return fmt::format(", {:.0f} tokens/s, {:.3f} GB/s, waiting for the disk {:.0f} %",
                     static_cast<double>(tokens) / seconds, static_cast<double>(s.bytes) / seconds * 1e-9,
                     100 * s.wait_s / seconds);
}

// What a rank of a dump holds beside the host memory of its shards.
template <class T> struct DumpRank {
  Target<T> target;
  PackedRow row;
  Bf16* tap;
};
template <class T>
DumpRank<T> make_dump_rank(const RunOptions& o, const RunInputs& in, const Ranks& ranks, Arena& arena,
                           const Queue& queue) {
  const int64_t tokens = o.config.data.row_tokens;
  Target<T> target = make_target<T>(
      o, in, frozen_weights<T>(o, in, {in.last_tap + 1, false}, ranks, arena, queue), arena, queue);
  PackedRow row("target.row", tokens, arena);
  return {std::move(target), std::move(row),
          arena.take<Bf16>("dump.tap", tokens * in.target.hidden, "data.row_tokens")};
}

template <class T>
int dump_shards(const RunOptions& o, const RunInputs& in, const DumpPlan& plan, const Ranks& ranks,
                const Queue& queue) {
  const MpiSession& mpi = *ranks.mpi;
  Phases& phases = *ranks.phases;
  const double timeout = o.config.comm.timeout_s;
  const int me = mpi.rank();
  Arena arena(queue.device);
  DumpRank<T> rank = make_dump_rank<T>(o, in, ranks, arena, queue);
  log_info(fmt::format("dump rank {}: memory, and {} bytes of host memory for {} rows\n{}", me,
                       o.config.dump.queue_rows * plan.row_values * 2, o.config.dump.queue_rows,
                       arena.table(12)));
  FeatureDump dump({o.config.dump.dir, o.config.dump.queue_rows, plan.row_values, queue.device, me == 0},
                   plan);
  RowTable rows(in, o.config.data);
  int64_t mine = 0;
  for (const ShardPlan& s : plan.shards) mine += s.writer == me ? static_cast<int64_t>(s.rows.size()) : 0;
  int64_t done = 0, tokens_done = 0;
  bool stopped = false;
  const Clock::time_point start = Clock::now();
  {
    Progress progress(o.config.dump.dir, static_cast<double>(mine), "rows of this rank");
    for (const ShardPlan& s : plan.shards) {
      if (s.writer != me) continue;
      for (const int64_t index : s.rows) {
        if (stop_signalled()) stopped = true;
        if (stopped) break;
        phases.at(done + 1, "wait");
        const int slot = dump.acquire(mpi.peers(), timeout);
        phases.at(done + 1, "capture");
        RowTokens tokens = rows.read({kTrainRow, 0, 0, index});
        const Packed packed = rank.row.set(tokens.ids, tokens.lengths, queue);
        capture_to_host<T>(rank.target, packed, in.drafter.taps, rank.tap, dump.memory(slot), queue);
        tokens_done += packed.tokens;
        dump.submit(slot, std::move(tokens), s, queue);
        ++done;
        if (me == 0)
          progress.at(static_cast<double>(done), dump_rates(tokens_done, seconds_since(start), dump.stats()));
      }
    }
  }
  phases.at(done, "save");
  dump.finish(mpi.peers(), timeout);
  const double seconds = seconds_since(start);
  // The ranks do not end together; none may work much longer than another has.
  const Deadline others = deadline_in(timeout + 4 * seconds);
  const bool any_stopped = any_rank(mpi.world(), stopped, others, "the other ranks' shards");
  const bool complete = !any_stopped && plan.documents_left_out == 0;
  if (me == 0) {
    dump.list_rest();
    close_dump_folder(o.config.dump.dir, complete);
  }
  barrier(mpi.world(), others, "the manifest");
  const DumpStats stats = dump.stats();
  log_info(
      fmt::format("dump rank {}: {} rows, {} shards, {} bytes of features in {:.1f} s ({:.3f} GB/s), waited "
                  "{:.1f} s for the disk",
                  me, stats.rows, stats.shards, stats.bytes, seconds,
                  static_cast<double>(stats.bytes) / seconds * 1e-9, stats.wait_s));
  if (any_stopped) {
    log_info(fmt::format("{}: stopped; what is listed stays, run again to go on", o.config.dump.dir));
    return kStopped;
  }
  log_info(fmt::format(
      "{}: {}", o.config.dump.dir,
      complete ? "complete"
               : fmt::format("ended at dump.max_bytes, {} documents are left out", plan.documents_left_out)));
  return kOk;
}

// One rank looks, all follow.
Verdict look(const RunOptions& o, std::optional<RunInputs>& in) {
  try {
    in.emplace(read_dump_inputs(o));
    in->corpus->validate(in->target.vocab);
    if (!o.synthetic)
      check_target_tensors(in->target, WeightFolder(o.config.target.path), {in->last_tap + 1, false});
    prepare_dump_folder(o.config.dump.dir, dump_spec(o, *in));
    return {};
  } catch (const Error& e) {
    return {e.exit_code(), e.what()};
  }
}

}  // namespace

RunInputs read_dump_inputs(const RunOptions& o) {
  RunInputs in = read_inputs(o);
  if (weighted(in.sources))
    log_info("weights of data.tokens are for training: a dump holds each document once");
  for (Source& s : in.sources) s.weight = kWeightOnce;
  return in;
}

std::string dump_text(const RunOptions& o, const DumpPlan& p) {
  std::string out = fmt::format("dump to {}: {} documents in {} shards, at most {} bytes", o.config.dump.dir,
                                p.documents, p.shards.size(), p.bytes);
  if (const int64_t free = free_bytes(o.config.dump.dir); free >= 0)
    out += fmt::format("; {} bytes are free there", free);
  if (p.shards_there > 0)
    out += fmt::format("; {} listed shards hold {} documents in {} bytes", p.shards_there, p.documents_there,
                       p.bytes_there);
  if (p.documents_left_out > 0)
    out += fmt::format("; dump.max_bytes = {} leaves {} documents out", o.config.dump.max_bytes,
                       p.documents_left_out);
  return out;
}

std::vector<Arena::Entry> dump_memory(const RunOptions& o, const RunInputs& in) {
  Arena arena(o.device, Arena::Mode::measure);
  const Queue queue{o.device};
#if SLIP_HAVE_CUDA
  if (o.device == Device::cuda && o.config.train.precision != "fp32") {
    make_dump_rank<Bf16>(o, in, {}, arena, queue);
    return arena.entries();
  }
#endif
  make_dump_rank<float>(o, in, {}, arena, queue);
  return arena.entries();
}

int run_dump(const RunOptions& o, const MpiSession& mpi) {
  Phases phases(mpi.heartbeat(), mpi.rank(), std::getenv("SLIP_TEST_FAULT"));
  phases.at(0, "start");
  const Deadline start = deadline_in(o.config.comm.timeout_s);
  const GpuChoice gpu = settle_gpus(mpi, o.device, o.share_gpu, start);  // before anything is written
  if (gpu.code != 0) return gpu.code;
  std::optional<RunInputs> in;
  const Verdict verdict = agree(mpi.world(), mpi.rank() == 0 ? look(o, in) : Verdict{}, start,
                                "the check of configuration and files");
  if (verdict.code != 0) {
    if (mpi.rank() == 0) log_error(verdict.message);
    return verdict.code;
  }
  log_quiet_terminal(mpi.rank() != 0);
  if (!in) in.emplace(read_dump_inputs(o));
  const DumpPlan plan = plan_dump(o, *in, {mpi.size(), false, 0});
  log_quiet_terminal(false);
  log_info(dump_text(o, plan));
  barrier(mpi.world(), start, "the plan");  // nobody writes while another still reads what is there
  if (plan.shards.empty()) {
    if (mpi.rank() == 0) close_dump_folder(o.config.dump.dir, plan.documents_left_out == 0);
    log_info(fmt::format("{}: nothing is left to do", o.config.dump.dir));
    return kOk;
  }
  const int64_t free = free_bytes(o.config.dump.dir);
  if (free >= 0 && free < plan.bytes) {
    if (mpi.rank() == 0)
      log_error(fmt::format("{}: {} bytes are needed, {} are free there; make room, or set dump.max_bytes",
                            o.config.dump.dir, plan.bytes, free));
    return kFailed;
  }
  phases.at(0, "load");
  Ranks ranks{.mpi = &mpi, .phases = &phases};
  if (o.device == Device::cpu) return dump_shards<float>(o, *in, plan, ranks, Queue{});
#if SLIP_HAVE_CUDA
  const CudaQueue cuda(gpu.device);
  ranks.share_gpu = gpu.shared;
  if (o.config.train.precision != "fp32") return dump_shards<Bf16>(o, *in, plan, ranks, cuda.queue());
  return dump_shards<float>(o, *in, plan, ranks, cuda.queue());
#else
  fail("this build has no CUDA back end");
#endif
}

}  // namespace slip
