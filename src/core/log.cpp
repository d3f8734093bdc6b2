#include "core/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <memory>

namespace slip {
namespace {

// Logging is the one thing that every layer reaches without being handed it.
struct Log {
  int rank = -1;
  std::shared_ptr<spdlog::logger> terminal;
  std::shared_ptr<spdlog::logger> file;
  bool quiet = false;
};

Log& log() {
  static Log l = [] {
    Log made;
    made.terminal =
        std::make_shared<spdlog::logger>("terminal", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made.terminal->set_pattern("slipstream: %v");
    return made;
  }();
  return l;
}

void emit(spdlog::level::level_enum level, const std::string& message, bool on_terminal) {
  if (on_terminal) log().terminal->log(level, message);
  if (log().file) log().file->log(level, message);
}

}  // namespace

void log_init(int rank, int ranks) {
  log().rank = rank;
  // One rank needs no number on every line.
  log().terminal->set_pattern(ranks > 1 ? fmt::format("slipstream[{}]: %v", rank) : "slipstream: %v");
}

void log_to_file(const std::string& path) {
  log().file =
      std::make_shared<spdlog::logger>("file", std::make_shared<spdlog::sinks::basic_file_sink_mt>(path));
  log().file->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");
  log().file->flush_on(spdlog::level::info);
}

void log_quiet_terminal(bool quiet) { log().quiet = quiet; }
bool log_shows() { return log().rank <= 0 && !log().quiet; }
void log_info(const std::string& m) { emit(spdlog::level::info, m, log_shows()); }
void log_warn(const std::string& m) { emit(spdlog::level::warn, "warning: " + m, !log().quiet); }
void log_error(const std::string& m) { emit(spdlog::level::err, "error: " + m, true); }

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace slip
