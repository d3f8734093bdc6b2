// Saves beside training: the state is copied to host memory, which stops training for a moment, and a thread
// writes it. Where the host has no memory for a lasting copy `start` returns when the save is written.
// Whoever waits for a save shows how far it is.
#pragma once
#include <atomic>
#include <functional>
#include <future>
#include <string>

#include "core/config.hpp"
#include "device/buffer.hpp"
#include "train/checkpoint.hpp"

namespace slip {

class Phases;

class CheckpointSaver {
 public:
  // `phases` may be null; `saved` is called after each save, by the thread that wrote it. All references
  // outlive the saver.
  CheckpointSaver(const CheckpointConfig&, std::string folder, const DrafterModel&, const ParameterLayout&,
                  Phases* phases, std::function<void()> saved);
  ~CheckpointSaver();  // waits; a save that failed meanwhile is logged

  // Takes over the result of the save before, then copies and saves this state. The pointers are where the
  // queue's memory is. Throws what the save before failed with.
  void start(const OptimizerState&, const TrainerState&, const std::string& why, const Queue&);
  // Throws when a save has failed for good; does not wait.
  void poll();
  // The same, and waits.
  void wait();

 private:
  void copy(const OptimizerState&, const Queue&);
  void write(const TrainerState&, const std::string& why);

  const CheckpointConfig& config_;
  std::string folder_;
  const DrafterModel& model_;
  const ParameterLayout& layout_;
  Phases* phases_;
  std::function<void()> saved_;
  bool beside_ = false;
  Buffer copy_;                     // masters, m, v in fp32
  std::future<void> writing_;       // of the thread that reads copy_
  std::atomic<int64_t> moved_ = 0;  // bytes by that thread (SaveHooks)
};

}  // namespace slip
