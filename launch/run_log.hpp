// What drafter 0 writes while it trains: metrics.jsonl (one object a step), eval.jsonl, and a line of
// progress.
#pragma once
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "launch/inputs.hpp"
#include "train/sums.hpp"

namespace slip {

struct StepReport {
  int64_t step, total, epoch;  // step counts from 1
  StepSums sums;               // over all ranks
  int64_t bad_steps = 0;       // skipped so far
  double grad_norm, lr, seconds, wait_features_s, target_wait_share;
};

class RunLog {
 public:
  // Creates the run directory and its files; a continued run keeps the lines up to `from_step` and appends.
  RunLog(const RunOptions&, const RunInputs&, const std::string& plan_json, int64_t from_step);
  ~RunLog();
  void step(const StepReport&);
  void evaluation(int64_t step, const StepSums&);  // appends to eval.jsonl and says so
  double first_acceptance() const { return first_acceptance_; }
  double last_acceptance() const { return last_acceptance_; }

 private:
  struct CloseFile {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  void append(std::FILE*, const std::string& line);
  void progress(const StepReport&);

  LossKind kind_;
  int64_t block_, every_;
  std::string dir_;
  std::unique_ptr<std::FILE, CloseFile> metrics_, eval_;
  bool terminal_ = false, open_line_ = false;
  double first_acceptance_ = 0, last_acceptance_ = 0;
  double recent_seconds_ = 0, recent_tokens_ = 0, recent_wait_ = 0;
  int64_t recent_steps_ = 0;
  std::chrono::steady_clock::time_point shown_{};
};

}  // namespace slip
