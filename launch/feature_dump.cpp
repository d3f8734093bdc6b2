#include "launch/feature_dump.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "core/log.hpp"
#include "core/threads.hpp"
#include "device/buffer.hpp"
#include "io/feature_shard.hpp"
#if SLIP_HAVE_CUDA
#include "device/cuda.hpp"
#endif

namespace slip {
namespace fs = std::filesystem;
namespace {

struct Slot {
  Buffer memory;
  RowTokens row;
  const ShardPlan* shard = nullptr;
#if SLIP_HAVE_CUDA
  Event copied;  // null on the CPU
#endif
};

void wait_for_copy(const Slot& s) {
#if SLIP_HAVE_CUDA
  if (s.copied) check(cudaEventSynchronize(s.copied.get()));
#else
  (void)s;
#endif
}

}  // namespace

struct FeatureDump::State {
  Setup setup;
  const DumpPlan& plan;
  std::vector<Slot> slots;
  int cuda_device = 0;

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::vector<int> free;
  std::deque<int> waiting;
  bool ending = false, stop = false, ended = false;
  std::exception_ptr error;
  DumpStats stats;

  // The thread's own.
  std::optional<FeatureShardWriter> writer;
  const ShardPlan* open = nullptr;
  DumpManifest manifest;
  std::unordered_set<std::string> listed;
  std::thread thread;

  State(const Setup& s, const DumpPlan& p) : setup(s), plan(p) {}

  void write(Slot& s) {
    wait_for_copy(s);
    const Clock::time_point begin = Clock::now();
    if (s.shard != open) end_shard();
    if (!writer) {
      writer.emplace((fs::path(setup.folder) / shard_name(s.shard->number)).string(), plan.spec, plan.table,
                     s.shard->size);
      open = s.shard;
    }
    std::vector<FeatureDocument> documents;
    int64_t first = 0, kept = 0;
    for (size_t d = 0; d < s.row.lengths.size(); ++d) {
      const size_t at = static_cast<size_t>(first), n = static_cast<size_t>(s.row.lengths[d]);
      FeatureDocument& doc = documents.emplace_back();
      doc.id = s.row.document_ids[d];
      doc.ids = std::span(s.row.ids).subspan(at, n);
      doc.mask = std::span(s.row.mask).subspan(at, n);
      doc.feature_rows = kept_rows(plan.spec, doc.mask);
      kept += doc.feature_rows;
      first += s.row.lengths[d];
    }
    writer->add(documents, s.memory.as<Bf16>());
    const std::lock_guard lock(mutex);
    ++stats.rows;
    stats.bytes += kept * plan.spec.bytes_per_token();
    stats.write_s += seconds_since(begin);
  }

  void end_shard() {
    if (!writer) return;
    const ShardEntry e = writer->finish();
    writer.reset();
    open = nullptr;
    {
      const std::lock_guard lock(mutex);
      ++stats.shards;
    }
    if (setup.lists) {
      add(e);
      list();
    }
  }

  void add(const ShardEntry& e) {
    listed.insert(e.name);
    manifest.shards.push_back(e);
  }
  // Shards of other processes that are there; true: one was found.
  bool look() {
    bool found = false;
    for (const ShardPlan& s : plan.shards) {
      const std::string name = shard_name(s.number), path = (fs::path(setup.folder) / name).string();
      std::error_code ignored;
      if (listed.count(name) != 0 || !fs::exists(path, ignored)) continue;
      add(shard_entry(path));
      found = true;
    }
    return found;
  }
  void list() {
    look();
    std::sort(manifest.shards.begin(), manifest.shards.end(),
              [](const ShardEntry& a, const ShardEntry& b) { return a.name < b.name; });
    write_manifest(setup.folder, manifest);
  }

  void run() {
#if SLIP_HAVE_CUDA
    if (setup.device == Device::cuda) check(cudaSetDevice(cuda_device));
#endif
    for (;;) {
      int slot = -1;
      {
        std::unique_lock lock(mutex);
        changed.wait_for(lock, std::chrono::seconds(1), [&] { return stop || ending || !waiting.empty(); });
        if (stop) return;
        if (!waiting.empty()) {
          slot = waiting.front();
          waiting.pop_front();
        } else if (ending) {
          break;
        }
      }
      if (slot < 0) {
        if (setup.lists && look()) list();
        continue;
      }
      write(slots[static_cast<size_t>(slot)]);
      const std::lock_guard lock(mutex);
      free.push_back(slot);
    }
    end_shard();
  }

  void guarded_run() {
    std::exception_ptr failed;
    try {
      run();
    } catch (...) {
      failed = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    error = failed;
    ended = true;
  }
};

FeatureDump::FeatureDump(const Setup& setup, const DumpPlan& plan)
    : state_(std::make_unique<State>(setup, plan)) {
  State& s = *state_;
  require(setup.slots >= 1, "FeatureDump: no slots");
  require_threadsafe_h5();  // the caller reads tokens meanwhile
  for (int64_t i = 0; i < setup.slots; ++i) {
    Slot& slot = s.slots.emplace_back();
    slot.memory = Buffer(setup.device == Device::cuda ? Place::pinned : Place::host, setup.row_values * 2);
#if SLIP_HAVE_CUDA
    if (setup.device == Device::cuda) slot.copied = make_event();
#endif
    s.free.push_back(static_cast<int>(i));
  }
#if SLIP_HAVE_CUDA
  if (setup.device == Device::cuda) check(cudaGetDevice(&s.cuda_device));
#endif
  if (setup.lists) {
    if (const std::optional<DumpManifest> there = read_manifest(setup.folder)) s.manifest = *there;
    for (const ShardEntry& e : s.manifest.shards) s.listed.insert(e.name);
    s.manifest.spec = plan.spec;
    s.manifest.complete = false;
  }
  s.thread = start_thread("to write features", [&s] { s.guarded_run(); });
}

FeatureDump::~FeatureDump() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}

int FeatureDump::acquire(const Peers& peers, double timeout_s) {
  State& s = *state_;
  const Clock::time_point begin = Clock::now();
  Wait wait(peers, deadline_in(timeout_s), "the disk to take features (dump.dir)", -1);
  for (;;) {
    {
      const std::lock_guard lock(s.mutex);
      if (s.error) std::rethrow_exception(s.error);
      if (!s.free.empty()) {
        const int slot = s.free.back();
        s.free.pop_back();
        s.stats.wait_s += seconds_since(begin);
        return slot;
      }
    }
    wait.pause();
  }
}

Bf16* FeatureDump::memory(int slot) { return state_->slots.at(static_cast<size_t>(slot)).memory.as<Bf16>(); }

void FeatureDump::submit(int slot, RowTokens row, const ShardPlan& shard, const Queue& queue) {
  State& s = *state_;
  Slot& to = s.slots.at(static_cast<size_t>(slot));
  to.row = std::move(row);
  to.shard = &shard;
#if SLIP_HAVE_CUDA
  if (to.copied) check(cudaEventRecord(to.copied.get(), queue.stream));
#else
  (void)queue;
#endif
  {
    const std::lock_guard lock(s.mutex);
    s.waiting.push_back(slot);
  }
  s.changed.notify_all();
}

void FeatureDump::finish(const Peers& peers, double timeout_s) {
  State& s = *state_;
  {
    const std::lock_guard lock(s.mutex);
    s.ending = true;
  }
  s.changed.notify_all();
  Wait wait(peers, deadline_in(timeout_s), "the last shard to be synced (dump.dir)", -1);
  const auto ended = [&] {
    const std::lock_guard lock(s.mutex);
    return s.ended;
  };
  while (!ended()) wait.pause();
  if (s.thread.joinable()) s.thread.join();
  if (s.error) std::rethrow_exception(s.error);
}

void FeatureDump::list_rest() {
  State& s = *state_;
  require(!s.thread.joinable() && s.setup.lists, "list_rest: the thread still writes");
  std::error_code ignored;
  fs::remove(fs::path(s.setup.folder) / "all.h5", ignored);  // that of an earlier run shows less
  s.list();
}

DumpStats FeatureDump::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

}  // namespace slip
