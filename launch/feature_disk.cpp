#include "launch/feature_disk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "core/threads.hpp"
#include "device/buffer.hpp"
#include "device/copy_queue.hpp"

namespace slip {
namespace {

struct Slot {
  Bf16* memory = nullptr;
  enum class State { free, waiting, reading, ready, lent } state = State::free;
  RowId id{};
  RowTokens row;
  std::exception_ptr error;
};

// Of a thread, on a GPU: where a row is put together, and what takes it from there to its slot.
struct Staging {
  Buffer pinned;
  CopyQueue copies;
};

}  // namespace

struct FeatureDisk::State {
  const FeatureFiles *train, *eval;
  int64_t max_tokens = 0;
  std::vector<Slot> slots;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<size_t> waiting;
  bool stop = false;
  std::vector<Staging> staging;  // empty on the CPU
  std::vector<std::thread> threads;

  State(const FeatureFiles* t, const FeatureFiles* e) : train(t), eval(e) {}
  ~State() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    for (std::thread& t : threads) t.join();
  }
  const FeatureFiles* files(int32_t kind) const { return kind == kEvalRow ? eval : train; }
  int64_t token_bytes() const { return (train != nullptr ? train : eval)->spec().bytes_per_token(); }

  void read(const Slot& s, Bf16* to, std::vector<Bf16>& scratch) const {
    const FeatureFiles& from = *files(s.id.kind);
    const int64_t tokens = static_cast<int64_t>(s.row.ids.size()), h = from.spec().hidden;
    int64_t first = 0;
    for (size_t d = 0; d < s.row.lengths.size(); ++d) {
      const size_t at = static_cast<size_t>(first), n = static_cast<size_t>(s.row.lengths[d]);
      read_document_taps(from.find(s.row.document_ids[d]).value(), std::span(s.row.ids).subspan(at, n),
                         std::span(s.row.mask).subspan(at, n), to + first * h, tokens * h, scratch);
      first += s.row.lengths[d];
    }
  }

  void fill(const Slot& s, const Staging* by, std::vector<Bf16>& scratch) const {
    if (by == nullptr) return read(s, s.memory, scratch);
    read(s, by->pinned.as<Bf16>(), scratch);
    copy_to_device(s.memory, by->pinned.data(), static_cast<int64_t>(s.row.ids.size()) * token_bytes(),
                   by->copies.queue());
    synchronize(by->copies.queue());
  }

  void run(const Staging* by) {
    h5_quiet();
    std::vector<Bf16> scratch;
    for (;;) {
      size_t i = 0;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stop || !waiting.empty(); });
        if (stop) return;
        i = waiting.front();
        waiting.pop_front();
        slots[i].state = Slot::State::reading;
      }
      std::exception_ptr error;
      try {
        if (by != nullptr) by->copies.enter();
        fill(slots[i], by, scratch);
      } catch (...) {
        error = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      slots[i].error = error;
      slots[i].state = Slot::State::ready;
    }
  }
};

FeatureDisk::FeatureDisk(const FeatureFiles* train, const FeatureFiles* eval, const Setup& setup)
    : state_(std::make_unique<State>(train, eval)) {
  State& s = *state_;
  require_threadsafe_h5();
  s.max_tokens = setup.max_tokens;
  s.slots.resize(static_cast<size_t>(setup.slots));
  const int64_t bytes = setup.max_tokens * s.token_bytes();
  for (size_t i = 0; i < s.slots.size(); ++i)
    s.slots[i].memory = setup.memory + static_cast<int64_t>(i) * bytes / 2;
  const int64_t threads = std::min(setup.threads, setup.slots);  // more would have nothing to read
  if (setup.device == Device::cuda) {
    for (int64_t i = 0; i < threads; ++i)
      s.staging.push_back({Buffer(Place::pinned, bytes), CopyQueue(setup.device)});
  }
  for (int64_t i = 0; i < threads; ++i) {
    const Staging* by = s.staging.empty() ? nullptr : &s.staging[static_cast<size_t>(i)];
    s.threads.push_back(start_thread("to read features", [&s, by] { s.run(by); }));
  }
}

FeatureDisk::~FeatureDisk() = default;

bool FeatureDisk::requested(const RowId& id) const {
  const std::lock_guard lock(state_->mutex);
  for (const Slot& s : state_->slots) {
    if (s.state != Slot::State::free && s.state != Slot::State::lent && s.id == id) return true;
  }
  return false;
}

bool FeatureDisk::holds(int32_t kind, const Row& row) const {
  const FeatureFiles* files = state_->files(kind);
  if (files == nullptr) return false;
  for (const TokenCorpus::Document& d : row.documents) {
    if (!files->find(d.id)) return false;
  }
  return true;
}

bool FeatureDisk::try_request(const RowId& id, RowTokens row) {
  State& s = *state_;
  {
    const std::lock_guard lock(s.mutex);
    size_t i = 0;
    while (i < s.slots.size() && s.slots[i].state != Slot::State::free) ++i;
    if (i == s.slots.size()) return false;
    Slot& slot = s.slots[i];
    require(static_cast<int64_t>(row.ids.size()) <= s.max_tokens, "FeatureDisk: a row is too long");
    slot.id = id;
    slot.row = std::move(row);
    slot.state = Slot::State::waiting;
    s.waiting.push_back(i);
  }
  s.changed.notify_one();
  return true;
}

FeatureDisk::Ready FeatureDisk::receive(const RowId& id, const Peers& peers, double timeout_s) {
  State& s = *state_;
  const Clock::time_point begin = Clock::now();
  const std::string what =
      fmt::format("the features of row {} of epoch {} to be read (data.features)", id.index, id.epoch);
  Wait wait(peers, deadline_in(timeout_s), what, -1);
  for (;;) {
    {
      const std::lock_guard lock(s.mutex);
      bool known = false;
      for (size_t i = 0; i < s.slots.size(); ++i) {
        Slot& slot = s.slots[i];
        if (slot.state == Slot::State::free || slot.state == Slot::State::lent || slot.id != id) continue;
        known = true;
        if (slot.state != Slot::State::ready) break;
        if (slot.error) std::rethrow_exception(slot.error);
        slot.state = Slot::State::lent;
        return {static_cast<int>(i), slot.memory, static_cast<int64_t>(slot.row.ids.size()),
                seconds_since(begin)};
      }
      require(known, "FeatureDisk: a row that was not requested");
    }
    wait.pause();
  }
}

void FeatureDisk::release(int slot) {
  const std::lock_guard lock(state_->mutex);
  Slot& s = state_->slots.at(static_cast<size_t>(slot));
  require(s.state == Slot::State::lent, "FeatureDisk: released twice");
  s.state = Slot::State::free;
}

}  // namespace slip
