// main() of the kernel tests on a GPU: 77 (skipped) without a device, 1 where SLIP_REQUIRE_GPU=1 asks for
// one.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "kernels/cuda_queue.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (slip::cuda_device_count() == 0) {
    const char* required = std::getenv("SLIP_REQUIRE_GPU");
    const bool must = required != nullptr && std::string_view(required) == "1";
    std::fprintf(stderr, "%s: no CUDA device\n", must ? "failed" : "skipped");
    return must ? 1 : 77;
  }
  return RUN_ALL_TESTS();
}
