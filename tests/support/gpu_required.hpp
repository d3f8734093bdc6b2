// A test for GPUs where there is none: skipped, or failed where SLIP_REQUIRE_GPU=1 asks for one.
#pragma once
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "kernels/fp8.hpp"

namespace slip::testing {

// The exit code of a test that cannot run: 77 (skipped) or 1; 0 where there is a device.
inline int without_gpu() {
  if (cuda_device_count() > 0) return 0;
  const char* required = std::getenv("SLIP_REQUIRE_GPU");
  const bool must = required != nullptr && std::string_view(required) == "1";
  std::fprintf(stderr, "%s: no CUDA device\n", must ? "failed" : "skipped");
  return must ? 1 : 77;
}

// In SetUp: products in fp8 run on Hoppers alone.
inline void skip_without_fp8(Device device) {
  if (device == Device::cpu) return;
  const std::string problem = no_fp8(cuda_device_name(0), cuda_capability(0));
  if (!problem.empty()) GTEST_SKIP() << problem;
}

}  // namespace slip::testing
