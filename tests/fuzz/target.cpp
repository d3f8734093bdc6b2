#include "fuzz/target.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>

#include "core/check.hpp"
#include "core/log.hpp"

namespace slip::testing {
namespace {

// A folder in memory that goes away at the end.
struct Folder {
  std::string path;
  Folder() {
    path = std::string(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") + "/slip-fuzz-" +
           std::to_string(getpid());
    std::filesystem::create_directories(path);
    log_quiet_terminal(true);
  }
  ~Folder() { std::filesystem::remove_all(path); }
};

[[noreturn]] void fault(const std::string& what) {
  std::fprintf(stderr, "fuzz: %s\n", what.c_str());
  std::abort();
}

}  // namespace

std::string file_of(const Bytes& bytes, const std::string& name) {
  static const Folder folder;
  const std::string path = folder.path + "/" + name;
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data), static_cast<std::streamsize>(bytes.size));
  if (!out.flush()) fault(path + " cannot be written");
  return path;
}

void take_or_refuse(const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& e) {
    const std::string said = e.what();
    if (e.exit_code() != kBadInput && e.exit_code() != kUsage)
      fault("exit code " + std::to_string(e.exit_code()) + ": " + said);
    const bool control =
        std::any_of(said.begin(), said.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
    if (said.empty() || control || said.size() > 10000) fault("not one line: " + said);
  } catch (const std::exception& e) {
    fault(std::string("not an error for the user: ") + e.what());
  }
}

}  // namespace slip::testing
