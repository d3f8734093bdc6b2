#include <time.h>

#include <algorithm>

#include "apps/bench.hpp"
#if SLIP_HAVE_CUDA
#include <cuda_runtime.h>

#include "device/cuda.hpp"
#endif

namespace slip {
namespace {

Timing summary(std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  const size_t n = ms.size(), half = n / 2;
  return {n % 2 == 1 ? ms[half] : (ms[half - 1] + ms[half]) / 2, ms.front(), ms.back(),
          static_cast<int64_t>(n)};
}

// What this thread has had of a core: the same as elapsed time on an idle machine, and not distorted by a
// busy one.
double thread_ms() {
  timespec t{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0) fail("clock_gettime: no clock of the thread");
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

std::vector<double> measure_cpu(const Repeats& r, const std::function<void()>& work) {
  std::vector<double> ms;
  for (int64_t i = 0; i < r.count; ++i) {
    const double start = thread_ms();
    work();
    ms.push_back(thread_ms() - start);
  }
  return ms;
}

// One repeat: each mark's name and the milliseconds to the next mark or the end.
using Marks = std::vector<std::pair<std::string, double>>;

Marks marks_cpu(const std::function<void(const Mark&)>& work) {
  Marks marks;
  std::vector<double> at;
  work([&](const char* name) {
    marks.emplace_back(name, 0);
    at.push_back(thread_ms());
  });
  at.push_back(thread_ms());
  for (size_t i = 0; i < marks.size(); ++i) marks[i].second = at[i + 1] - at[i];
  return marks;
}

#if SLIP_HAVE_CUDA
Event timing_event() {
  cudaEvent_t e = nullptr;
  check(cudaEventCreate(&e));
  return Event(e);
}

// All repeats are queued before one is waited for, so the host's launches hide behind the flushes.
std::vector<double> measure_cuda(const Queue& q, const Repeats& r, const std::function<void()>& work) {
  std::vector<std::pair<Event, Event>> events;
  for (int64_t i = 0; i < r.count; ++i) {
    if (r.flush != nullptr) zero(r.flush->data(), r.flush->bytes(), q);
    events.emplace_back(timing_event(), timing_event());
    check(cudaEventRecord(events.back().first.get(), q.stream));
    work();
    check(cudaEventRecord(events.back().second.get(), q.stream));
  }
  synchronize(q);
  std::vector<double> ms;
  for (const auto& [start, end] : events) {
    float elapsed = 0;
    check(cudaEventElapsedTime(&elapsed, start.get(), end.get()));
    ms.push_back(elapsed);
  }
  return ms;
}

Marks marks_cuda(const Queue& q, const std::function<void(const Mark&)>& work) {
  Marks marks;
  std::vector<Event> at;
  const auto record = [&] {
    at.push_back(timing_event());
    check(cudaEventRecord(at.back().get(), q.stream));
  };
  work([&](const char* name) {
    marks.emplace_back(name, 0);
    record();
  });
  record();
  synchronize(q);
  for (size_t i = 0; i < marks.size(); ++i) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, at[i].get(), at[i + 1].get()));
    marks[i].second = ms;
  }
  return marks;
}
#endif

}  // namespace

Timing measure(const Queue& q, const Repeats& r, const std::function<void()>& work) {
  require(r.count > 0, "measure: no repeats");
  for (int64_t i = 0; i < r.warmup; ++i) work();
  synchronize(q);
#if SLIP_HAVE_CUDA
  if (!q.on_cpu()) return summary(measure_cuda(q, r, work));
#endif
  return summary(measure_cpu(r, work));
}

std::vector<PartTiming> measure_parts(const Queue& q, const Repeats& r,
                                      const std::function<void(const Mark&)>& work) {
  require(r.count > 0, "measure_parts: no repeats");
  for (int64_t i = 0; i < r.warmup; ++i) work([](const char*) {});
  synchronize(q);
  std::vector<PartTiming> parts;
  std::vector<std::vector<double>> sums;  // [part][repeat]
  for (int64_t i = 0; i < r.count; ++i) {
#if SLIP_HAVE_CUDA
    const Marks marks = q.on_cpu() ? marks_cpu(work) : marks_cuda(q, work);
#else
    const Marks marks = marks_cpu(work);
#endif
    for (std::vector<double>& s : sums) s.push_back(0);
    for (PartTiming& p : parts) p.calls = 0;
    for (const auto& [name, ms] : marks) {
      auto at = std::find_if(parts.begin(), parts.end(), [&](const PartTiming& p) { return p.name == name; });
      if (at == parts.end()) {
        at = parts.insert(at, {name, 0, {}});
        sums.emplace_back(static_cast<size_t>(i + 1), 0.0);
      }
      ++at->calls;
      sums[static_cast<size_t>(at - parts.begin())].back() += ms;
    }
  }
  for (size_t i = 0; i < parts.size(); ++i) parts[i].time = summary(sums[i]);
  return parts;
}

}  // namespace slip
