// The one exception of the program and how it is raised. No fmt here: CUDA sources include this.
#pragma once
#include <source_location>
#include <stdexcept>
#include <string>

namespace slip {

using Where = std::source_location;

// Exit codes a user meets (README, "Exit codes").
enum ExitCode : int { kOk = 0, kFailed = 1, kUsage = 2, kBadInput = 3, kPeerFailed = 4, kStopped = 75 };

class Error : public std::runtime_error {
 public:
  Error(const std::string& message, int exit_code, Where at)
      : std::runtime_error(message), exit_code_(exit_code), at_(at) {}
  int exit_code() const { return exit_code_; }
  const Where& where() const { return at_; }  // shown for internal failures only

 private:
  int exit_code_;
  Where at_;
};

// The world's failures: code 1. `fail_usage`: the command line or a configuration is wrong, code 2.
// `fail_input`: a file is missing or bad, code 3. Messages are one line: what, where, declared, found,
// remedy.
[[noreturn]] void fail(const std::string& message, Where at = Where::current());
[[noreturn]] void fail_usage(const std::string& message, Where at = Where::current());
[[noreturn]] void fail_input(const std::string& message, Where at = Where::current());
[[noreturn]] void fail_peer(const std::string& message, Where at = Where::current());

// A caller's mistake: code 1, with file and line.
inline void require(bool ok, const char* message, Where at = Where::current()) {
  if (!ok) fail(message, at);
}

}  // namespace slip
