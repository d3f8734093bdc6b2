// What drafter 0 writes while it trains: metrics.jsonl (one object a step), eval.jsonl, a line of progress,
// and with log.tensorboard the same numbers as TensorBoard event files, one for each start.
#pragma once
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "io/event_file.hpp"
#include "launch/feature_feed.hpp"
#include "launch/inputs.hpp"
#include "launch/prompt_evaluation.hpp"
#include "train/sums.hpp"

namespace slip {

struct StepReport {
  int64_t step, total, epoch;  // step counts from 1
  StepSums sums;               // over all ranks
  int64_t bad_steps = 0;       // skipped so far
  double grad_norm, lr, seconds, wait_features_s, target_wait_share, dump_wait_s;
  double reduce_s = 0, reduce_exposed_s = 0;  // gradient_sum.hpp
  double rows_ready = 0;  // in the queue when this rank took a row, that row not counted; mean of its rows
  TapTimes taps;
};

class RunLog {
 public:
  // Creates the run directory and its files; a continued run keeps the lines up to `from_step` and appends.
  RunLog(const RunOptions&, const RunInputs&, const std::string& plan_json, int64_t from_step);
  ~RunLog();
  void step(const StepReport&);
  // Appends to eval.jsonl and says so: held-out documents (simulated acceptance), decoded prompts, or both.
  void evaluation(int64_t step, const std::optional<StepSums>&, const std::optional<DecodedEvaluation>&);
  std::string sources_text() const;  // what was trained of each source since the start; empty for one source
  std::string evaluation_text() const;  // first and last: ", held-out acceptance length 1.00 -> 3.50"

 private:
  struct CloseFile {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  void append(std::FILE*, const std::string& line);
  void progress(const StepReport&);

  LossKind kind_;
  int64_t block_, every_, total_;
  std::vector<Source> sources_;  // empty: not told apart
  std::array<SourceSums, kMaxSources> by_source_{};
  std::string dir_;
  std::unique_ptr<std::FILE, CloseFile> metrics_, eval_;
  std::optional<EventFile> events_;
  bool terminal_ = false, open_line_ = false;
  struct FirstAndLast {
    double first = 0, last = 0;
    void add(double x) {
      if (first == 0) first = x;
      last = x;
    }
  };
  FirstAndLast simulated_, decoded_;  // acceptance lengths
  double peak_seconds_of_row_ = 0;    // that a row would take at the declared peak of all GPUs; 0: not known
  double recent_seconds_ = 0, recent_tokens_ = 0, recent_wait_ = 0, recent_target_wait_ = 0;
  double recent_rows_ = 0, recent_exposed_ = 0;
  int64_t recent_steps_ = 0;
  std::chrono::steady_clock::time_point shown_{}, said_ = std::chrono::steady_clock::now();
};

}  // namespace slip
