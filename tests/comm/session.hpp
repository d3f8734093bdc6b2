// The MPI session of a test process (mpi_main.cpp has started MPI), and what the tests of this folder share.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "comm/collectives.hpp"
#include "comm/mpi.hpp"

namespace slip::testing {

inline MpiSession& session() {
  static int argc = 0;
  static char** argv = nullptr;
  static MpiSession s(argc, argv, LauncherEnv{});
  return s;
}
inline const Comm& world() { return session().world(); }
inline Deadline soon() { return deadline_in(60); }

// What an error says; empty, and a failed test, when there was none or its exit code was another.
inline std::string message_of(int exit_code, const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), exit_code) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error was raised";
  return {};
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace slip::testing
