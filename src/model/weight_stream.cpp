#include "model/weight_stream.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

#include "core/log.hpp"
#include "core/threads.hpp"
#include "device/buffer.hpp"
#if SLIP_HAVE_CUDA
#include <cuda_runtime.h>

#include "device/cuda.hpp"
#endif

namespace slip {
namespace {

using Clock = std::chrono::steady_clock;
using Pieces = std::vector<WeightPiece>;
constexpr auto kReport = std::chrono::seconds(5);
constexpr auto kLook = std::chrono::milliseconds(100);

// In the order of the files, none larger than a buffer.
Pieces cut(Pieces pieces, int64_t most) {
  std::sort(pieces.begin(), pieces.end(), [](const WeightPiece& a, const WeightPiece& b) {
    return std::tie(a.tensor->file, a.tensor->offset, a.offset) <
           std::tie(b.tensor->file, b.tensor->offset, b.offset);
  });
  Pieces out;
  for (const WeightPiece& p : pieces) {
    for (int64_t at = 0; at < p.bytes; at += most) {
      out.push_back({p.tensor, p.offset + at, std::min(most, p.bytes - at), static_cast<char*>(p.to) + at});
    }
  }
  return out;
}

// What the readers share. A reader takes the next piece until there is none or another has failed, and says
// of each when it is in place.
class Work {
 public:
  Work(const WeightFolder& folder, const Pieces& pieces, int readers)
      : folder_(folder), pieces_(pieces), in_place_(pieces.size(), false), running_(readers) {}

  std::optional<size_t> next() {
    const size_t i = next_++;
    if (failed_ || i >= pieces_.size()) return std::nullopt;
    return i;
  }
  void read(size_t piece, void* to) {
    const WeightPiece& p = pieces_[piece];
    folder_.read_bytes(*p.tensor, p.offset, p.bytes, to);
    done_ += p.bytes;
  }
  void in_place(size_t piece) {
    const std::lock_guard lock(mutex_);
    in_place_[piece] = true;
    changed_.notify_one();
  }
  const WeightPiece& piece(size_t i) const { return pieces_[i]; }
  void fail() { failed_ = true; }
  // Runs in a thread of its own.
  template <class F> void run(F&& reader) {
    std::exception_ptr error;
    try {
      reader();
    } catch (...) {
      failed_ = true;
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    if (error && !error_) error_ = error;
    --running_;
    changed_.notify_one();
  }
  // Until all readers have ended; meanwhile hands on, in order, what is in place.
  void wait(int64_t total, const LoadHooks& hooks) {
    Clock::time_point said = Clock::now();
    size_t passed = hooks.spread != nullptr ? 0 : pieces_.size();
    const auto ready = [&] { return passed < pieces_.size() && in_place_[passed]; };
    for (int64_t seen = 0;;) {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kLook, [&] { return running_ == 0 || ready(); });
      const bool over = running_ == 0 && !ready(), pass = ready();
      lock.unlock();
      if (pass) {
        hooks.spread->pass(pieces_[passed].to, pieces_[passed].bytes);
        ++passed;
      }
      if (hooks.progress && done_ != seen && (over || Clock::now() - looked_ >= kLook)) {
        looked_ = Clock::now();
        seen = done_;
        hooks.progress();
      }
      if (over) return;
      if (Clock::now() - said < kReport) continue;
      said = Clock::now();
      log_info(fmt::format("{}: {:.1f} of {:.1f} GB read", folder_.folder(),
                           static_cast<double>(done_) * 1e-9, static_cast<double>(total) * 1e-9));
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const WeightFolder& folder_;
  const Pieces& pieces_;
  std::atomic<size_t> next_ = 0;
  std::atomic<int64_t> done_ = 0;
  std::atomic<bool> failed_ = false;
  Clock::time_point looked_{};
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<bool> in_place_;
  int running_;
  std::exception_ptr error_;
};

void read_in_place(Work& work) {
  while (const std::optional<size_t> i = work.next()) {
    work.read(*i, work.piece(*i).to);
    work.in_place(*i);
  }
}

#if SLIP_HAVE_CUDA
void read_to_device(Work& work, int device, int64_t buffer_bytes) {
  check(cudaSetDevice(device));
  const Stream stream = make_stream();
  const Buffer buffers[2] = {Buffer(Place::pinned, buffer_bytes), Buffer(Place::pinned, buffer_bytes)};
  const Event copied[2] = {make_event(), make_event()};
  std::optional<size_t> under_way[2];
  const auto settle = [&](int turn) {
    if (!under_way[turn]) return;
    check(cudaEventSynchronize(copied[turn].get()));
    work.in_place(*under_way[turn]);
    under_way[turn].reset();
  };
  int turn = 0;
  for (; const std::optional<size_t> i = work.next(); turn ^= 1) {
    const WeightPiece& p = work.piece(*i);
    settle(turn);  // the piece before the last
    work.read(*i, buffers[turn].data());
    check(cudaMemcpyAsync(p.to, buffers[turn].data(), static_cast<size_t>(p.bytes), cudaMemcpyHostToDevice,
                          stream.get()));
    check(cudaEventRecord(copied[turn].get(), stream.get()));
    under_way[turn] = i;
  }
  settle(turn);
  settle(turn ^ 1);
}
#endif

// The bytes come from the rank that reads.
void receive(const Pieces& pieces, const LoadHooks& hooks) {
  Clock::time_point looked{};
  for (const WeightPiece& p : pieces) {
    hooks.spread->pass(p.to, p.bytes);
    if (!hooks.progress || Clock::now() - looked < kLook) continue;
    looked = Clock::now();
    hooks.progress();
  }
}

}  // namespace

void stream_weights(const WeightFolder& folder, std::vector<WeightPiece> pieces, const Queue& queue,
                    const LoadHooks& hooks, const StreamLimits& limits) {
  const Pieces cut_pieces = cut(std::move(pieces), limits.piece_bytes);
  if (cut_pieces.empty()) return;
  int64_t total = 0, largest = 0;
  for (const WeightPiece& p : cut_pieces) total += p.bytes, largest = std::max(largest, p.bytes);
  synchronize(queue);  // what is queued may still write or zero the places
  const Clock::time_point start = Clock::now();
  const bool reads = hooks.spread == nullptr || hooks.spread->reads;
  if (reads) {
    // As many readers as have a few pieces each.
    const int readers = static_cast<int>(
        std::clamp<int64_t>(total / (2 * limits.piece_bytes), 1, std::max(1, limits.readers)));
    Work work(folder, cut_pieces, readers);
#if SLIP_HAVE_CUDA
    int device = 0;
    if (!queue.on_cpu()) check(cudaGetDevice(&device));
#endif
    const auto reader = [&] {
      work.run([&] {
#if SLIP_HAVE_CUDA
        if (!queue.on_cpu()) return read_to_device(work, device, largest);
#endif
        read_in_place(work);
      });
    };
    std::vector<std::thread> threads;
    std::exception_ptr stopped;
    try {
      for (int i = 0; i < readers; ++i) threads.push_back(start_thread("to read weights", reader));
      work.wait(total, hooks);
    } catch (...) {  // a rank is gone, or too few threads: the others end with their pieces
      work.fail();
      stopped = std::current_exception();
    }
    for (std::thread& t : threads) t.join();
    if (stopped) std::rethrow_exception(stopped);
    work.rethrow();
    folder.check_sizes();
  } else {
    receive(cut_pieces, hooks);
  }
  if (hooks.spread != nullptr) hooks.spread->finish();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (seconds >= 1 && reads) {
    const double gb = static_cast<double>(total) * 1e-9;
    log_info(fmt::format("{}: {:.1f} GB read in {:.1f} s, {:.2f} GB/s", folder.folder(), gb, seconds,
                         gb / seconds));
  }
}

}  // namespace slip
