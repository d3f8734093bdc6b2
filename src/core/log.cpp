#include "core/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>

namespace slip {
namespace {

using Logger = std::shared_ptr<spdlog::logger>;

// Logging is the one thing that every layer reaches without being handed it. Any thread may log while the
// main one still sets it up.
struct Log {
  std::atomic<int> rank = -1;
  const Logger terminal =
      std::make_shared<spdlog::logger>("terminal", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  std::mutex mutex;  // for `file`; never held while something is written, which may take long
  Logger file;

  Log() { terminal->set_pattern("slipstream: %v"); }
};

Log& log() {
  static Log& l = *new Log;  // never destroyed: the heartbeat's thread may speak while the process ends
  return l;
}

thread_local bool quiet = false;

void emit(spdlog::level::level_enum level, const std::string& message, bool on_terminal) {
  Log& l = log();
  if (on_terminal) l.terminal->log(level, message);
  std::unique_lock lock(l.mutex);
  const Logger file = l.file;
  lock.unlock();
  if (file) file->log(level, message);
}

}  // namespace

void log_init(int rank, int ranks) {
  log().rank = rank;
  // One rank needs no number on every line.
  log().terminal->set_pattern(ranks > 1 ? fmt::format("slipstream[{}]: %v", rank) : "slipstream: %v");
}

void log_to_file(const std::string& path) {
  const Logger file =
      std::make_shared<spdlog::logger>("file", std::make_shared<spdlog::sinks::basic_file_sink_mt>(path));
  file->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");
  file->flush_on(spdlog::level::info);
  const std::lock_guard lock(log().mutex);
  log().file = file;
}

void log_quiet_terminal(bool now_quiet) { quiet = now_quiet; }
bool log_shows() { return log().rank <= 0 && !quiet; }
void log_info(const std::string& m) { emit(spdlog::level::info, m, log_shows()); }
void log_warn(const std::string& m) { emit(spdlog::level::warn, "warning: " + m, !quiet); }
void log_error(const std::string& m) { emit(spdlog::level::err, "error: " + m, true); }

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace slip
