// How the program starts its threads.
#pragma once
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "core/check.hpp"

namespace slip {

// Where the system gives no thread, says `what` it was for; code 1.
template <class F> std::thread start_thread(const char* what, F&& run) {
  try {
    return std::thread(std::forward<F>(run));
  } catch (const std::system_error& e) {
    fail(std::string("no thread ") + what + ": " + e.code().message() +
         "; `ulimit -u` and the container limit how many there may be");
  }
}

}  // namespace slip
