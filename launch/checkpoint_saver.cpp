#include "launch/checkpoint_saver.hpp"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "core/log.hpp"
#include "core/progress.hpp"
#include "launch/phases.hpp"

namespace slip {
namespace {

constexpr std::chrono::milliseconds kLook(200);
using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

}  // namespace

CheckpointSaver::CheckpointSaver(const CheckpointConfig& config, std::string folder,
                                 const DrafterModel& model, const ParameterLayout& layout, Phases* phases,
                                 std::function<void()> saved)
    : config_(config),
      folder_(std::move(folder)),
      model_(model),
      layout_(layout),
      phases_(phases),
      saved_(std::move(saved)) {}

CheckpointSaver::~CheckpointSaver() {
  try {
    wait();
  } catch (const std::exception& e) {
    log_error(e.what());
  }
}

void CheckpointSaver::copy(const OptimizerState& from, const Queue& queue) {
  const int64_t bytes = layout_.count * static_cast<int64_t>(sizeof(float));
  if (copy_.bytes() == 0) {
    // Beside training the copy stays for the whole run: it may take half of what is free, the bf16 weights
    // that are made while writing included.
    const int64_t needed = 3 * bytes + bytes / 2, there = host_bytes_available();
    beside_ = config_.background && there >= 2 * needed;
    if (config_.background && !beside_)
      log_info(
          fmt::format("checkpoints are written while training waits: a copy of the state needs {} bytes, "
                      "{} are free on the host",
                      needed, there));
    copy_ = Buffer(beside_ && !queue.on_cpu() ? Place::pinned : Place::host, 3 * bytes);
  }
  float* to = copy_.as<float>();
  for (const float* part : {from.master, from.m, from.v}) {
    copy_to_host(to, part, bytes, queue);
    to += layout_.count;
  }
  synchronize(queue);
}

void CheckpointSaver::write(const TrainerState& state, const std::string& why) {
  const Clock::time_point began = Clock::now();
  const float* const master = copy_.as<float>();
  const OptimizerState host{master, master + layout_.count, master + 2 * layout_.count};
  const CheckpointConfig& c = config_;
  SaveHooks hooks;
  hooks.wrote = [&](const char* file) {
    if (phases_ != nullptr) phases_->fault_point(state.step, std::string("save/") + file);
  };
  hooks.moved = [&](int64_t bytes) { moved_ += bytes; };
  for (int64_t left = c.retries;; --left) {
    moved_ = 0;
    try {
      const std::string path =
          save_checkpoint(folder_, model_, layout_, host, state, {c.keep, c.keep_every, c.keep_best}, hooks);
      log_info(fmt::format("saved {} ({}) in {:.1f} s{}", path, why, seconds_since(began),
                           beside_ ? " beside training" : ""));
      break;
    } catch (const std::exception& e) {
      if (left <= 0) throw;
      log_warn(
          fmt::format("{}; again in {:g} s, checkpoint.retries allows {} more", e.what(), c.retry_s, left));
      std::this_thread::sleep_for(std::chrono::duration<double>(c.retry_s));
    }
  }
  saved_();
}

void CheckpointSaver::start(const OptimizerState& state, const TrainerState& trainer, const std::string& why,
                            const Queue& queue) {
  wait();
  copy(state, queue);
  try {
    writing_ = std::async(std::launch::async, [this, trainer, why] { write(trainer, why); });
  } catch (const std::system_error& e) {
    log_warn(fmt::format("no thread to save beside training ({}): saved in turn", e.code().message()));
    write(trainer, why);
  }
  if (beside_) return;
  wait();
  copy_ = Buffer();
}

void CheckpointSaver::poll() {
  if (writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
    writing_.get();
}

void CheckpointSaver::wait() {
  if (!writing_.valid()) return;
  {
    Progress progress("saving a checkpoint", SaveHooks::bytes(layout_), "bytes");
    while (writing_.wait_for(kLook) != std::future_status::ready) progress.at(static_cast<double>(moved_));
  }
  writing_.get();
}

}  // namespace slip
