// A test for GPUs where there is none: skipped, or failed where SLIP_REQUIRE_GPU=1 asks for one.
#pragma once
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "kernels/fp8.hpp"

namespace slip::testing {

inline bool gpu_required() {
  const char* required = std::getenv("SLIP_REQUIRE_GPU");
  return required != nullptr && std::string_view(required) == "1";
}

// The exit code of a test that cannot run: 77 (skipped) or 1; 0 where there is a device.
inline int without_gpu() {
  if (cuda_device_count() > 0) return 0;
  std::fprintf(stderr, "%s: no CUDA device\n", gpu_required() ? "failed" : "skipped");
  return gpu_required() ? 1 : 77;
}

// In SetUp: products in fp8 run on Hoppers alone.
inline void skip_without_fp8(Device device) {
  if (device == Device::cpu) return;
  const std::string problem = no_fp8(cuda_device_name(0), cuda_capability(0));
  if (problem.empty()) return;
  if (gpu_required()) FAIL() << problem;
  GTEST_SKIP() << problem;
}

}  // namespace slip::testing
