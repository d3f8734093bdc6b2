#include "core/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/log.hpp"

namespace slip {

std::string clock_text(double seconds) {
  const int64_t s = std::llround(std::clamp(seconds, 0.0, 1e9));
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

std::string progress_text(const std::string& what, double done, double total, const std::string& unit,
                          double seconds) {
  const double rate = done / std::max(seconds, 1e-9);
  const std::string left = rate > 0 ? ", left " + clock_text((total - done) / rate) : "";
  if (unit == "bytes")
    return fmt::format("{}: {:.0f} of {:.0f} MB, {:.0f} MB/s{}", what, done * 1e-6, total * 1e-6, rate * 1e-6,
                       left);
  return fmt::format("{}: {:.0f} of {:.0f} {}, {:.3g} a second{}", what, done, total, unit, rate, left);
}

Progress::Progress(std::string what, double total, std::string unit)
    : what_(std::move(what)), unit_(std::move(unit)), total_(total), terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (open_) std::fputs("\r\x1b[K", stderr);
}

void Progress::at(double done, const std::string& more) {
  done_ = done;
  const bool line = terminal_ && log_shows();
  const Clock::time_point now = Clock::now();
  if (now - shown_ < (line ? std::chrono::milliseconds(200) : std::chrono::milliseconds(5000))) return;
  shown_ = now;
  const std::string text =
      progress_text(what_, done, total_, unit_, std::chrono::duration<double>(now - start_).count()) + more;
  if (!line) return log_info(text);
  std::fprintf(stderr, "\r%s\x1b[K", text.c_str());
  std::fflush(stderr);
  open_ = true;
}

}  // namespace slip
