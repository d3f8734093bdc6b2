// How far a long piece of work is, with rate and remaining time: on a terminal one line that is rewritten and
// goes away at the end, elsewhere a plain line every five seconds. Shown by rank 0; every rank writes the
// plain lines to its file.
#pragma once
#include <chrono>
#include <string>

namespace slip {

class Progress {
 public:
  // "what: 12 of 100 unit, ..."; for the unit "bytes" amounts are shown in MB.
  Progress(std::string what, double total, std::string unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  // `done` so far; `more`: what else to say, ", waiting for the disk 12 %".
  void at(double done, const std::string& more = "");
  void add(double amount) { at(done_ + amount); }

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_, unit_;
  double total_, done_ = 0;
  bool terminal_, open_ = false;
  Clock::time_point start_ = Clock::now(), shown_ = start_;
};

// The text, as a pure function.
std::string progress_text(const std::string& what, double done, double total, const std::string& unit,
                          double seconds);
std::string clock_text(double seconds);  // 0:05, 12:34, 1:02:03

}  // namespace slip
