// A test for GPUs where there is none: skipped, or failed where SLIP_REQUIRE_GPU=1 asks for one.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "kernels/cuda_queue.hpp"

namespace slip::testing {

// The exit code of a test that cannot run: 77 (skipped) or 1; 0 where there is a device.
inline int without_gpu() {
  if (cuda_device_count() > 0) return 0;
  const char* required = std::getenv("SLIP_REQUIRE_GPU");
  const bool must = required != nullptr && std::string_view(required) == "1";
  std::fprintf(stderr, "%s: no CUDA device\n", must ? "failed" : "skipped");
  return must ? 1 : 77;
}

}  // namespace slip::testing
