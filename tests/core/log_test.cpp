#include "core/log.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

namespace slip {
namespace {

int times(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// As the heartbeat and the thread that saves do: they speak while the main thread still sets up its log, and
// while its progress line owns the terminal.
TEST(Log, AnotherThreadSpeaksMeanwhile) {
  const std::string path = ::testing::TempDir() + "slip-log-test";
  std::remove(path.c_str());
  ::testing::internal::CaptureStderr();
  std::atomic<int> said = 0;
  std::atomic<bool> over = false;
  std::thread other([&] {
    while (!over) {
      log_warn("of the other");
      ++said;
    }
  });
  const auto wait_for_more = [&] {
    for (const int before = said; said < before + 2;) std::this_thread::yield();
  };
  wait_for_more();
  log_init(3, 4);
  wait_for_more();
  log_to_file(path);
  const int in_file = said;
  wait_for_more();
  log_quiet_terminal(true);
  log_warn("of a quiet thread");
  wait_for_more();
  log_quiet_terminal(false);
  over = true;
  other.join();
  log_warn("the last");
  const std::string terminal = ::testing::internal::GetCapturedStderr();
  std::ostringstream file;
  file << std::ifstream(path).rdbuf();
  EXPECT_EQ(times(terminal, "warning: of the other\n"), said);  // none is lost, whoever is quiet
  EXPECT_EQ(times(terminal, "of a quiet thread"), 0);
  EXPECT_EQ(times(terminal, "slipstream[3]: warning: the last\n"), 1);
  EXPECT_EQ(times(file.str(), " W warning: of a quiet thread\n"), 1);
  EXPECT_GE(times(file.str(), " W warning: of the other\n"), said - in_file - 1);
  EXPECT_EQ(times(file.str(), "\n"), times(file.str(), " W warning: "));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace slip
