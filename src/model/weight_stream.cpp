#include "model/weight_stream.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <tuple>

#include "core/log.hpp"
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

// What the readers share. A reader takes the next piece until there is none or another has failed.
class Work {
 public:
  Work(const WeightFolder& folder, const Pieces& pieces, int readers)
      : folder_(folder), pieces_(pieces), running_(readers) {}

  const WeightPiece* next() {
    const size_t i = next_++;
    return failed_ || i >= pieces_.size() ? nullptr : &pieces_[i];
  }
  void read(const WeightPiece& p, void* to) {
    folder_.read_bytes(*p.tensor, p.offset, p.bytes, to);
    done_ += p.bytes;
  }
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
    ended_.notify_one();
  }
  // Until all readers have ended.
  void wait(int64_t total) {
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, kReport, [&] { return running_ == 0; })) {
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
  std::mutex mutex_;
  std::condition_variable ended_;
  int running_;
  std::exception_ptr error_;
};

void read_in_place(Work& work) {
  while (const WeightPiece* p = work.next()) work.read(*p, p->to);
}

#if SLIP_HAVE_CUDA
void read_to_device(Work& work, int device, int64_t buffer_bytes) {
  check(cudaSetDevice(device));
  const Stream stream = make_stream();
  const Buffer buffers[2] = {Buffer(Place::pinned, buffer_bytes), Buffer(Place::pinned, buffer_bytes)};
  const Event copied[2] = {make_event(), make_event()};
  for (int turn = 0; const WeightPiece* p = work.next(); turn ^= 1) {
    check(cudaEventSynchronize(copied[turn].get()));  // the piece before the last: at once when there is none
    work.read(*p, buffers[turn].data());
    check(cudaMemcpyAsync(p->to, buffers[turn].data(), static_cast<size_t>(p->bytes), cudaMemcpyHostToDevice,
                          stream.get()));
    check(cudaEventRecord(copied[turn].get(), stream.get()));
  }
  check(cudaStreamSynchronize(stream.get()));
}
#endif

}  // namespace

void stream_weights(const WeightFolder& folder, std::vector<WeightPiece> pieces, const Queue& queue,
                    const StreamLimits& limits) {
  const Pieces cut_pieces = cut(std::move(pieces), limits.piece_bytes);
  if (cut_pieces.empty()) return;
  int64_t total = 0, largest = 0;
  for (const WeightPiece& p : cut_pieces) total += p.bytes, largest = std::max(largest, p.bytes);
  // As many readers as have a few pieces each.
  const int readers =
      static_cast<int>(std::clamp<int64_t>(total / (2 * limits.piece_bytes), 1, std::max(1, limits.readers)));
  Work work(folder, cut_pieces, readers);
  synchronize(queue);  // what is queued may still write or zero the places
#if SLIP_HAVE_CUDA
  int device = 0;
  if (!queue.on_cpu()) check(cudaGetDevice(&device));
#endif
  const Clock::time_point start = Clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < readers; ++i) {
    threads.emplace_back([&] {
      work.run([&] {
#if SLIP_HAVE_CUDA
        if (!queue.on_cpu()) return read_to_device(work, device, largest);
#endif
        read_in_place(work);
      });
    });
  }
  work.wait(total);
  for (std::thread& t : threads) t.join();
  work.rethrow();
  folder.check_sizes();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (seconds >= 1) {
    const double gb = static_cast<double>(total) * 1e-9;
    log_info(fmt::format("{}: {:.1f} GB read in {:.1f} s, {:.2f} GB/s", folder.folder(), gb, seconds,
                         gb / seconds));
  }
}

}  // namespace slip
