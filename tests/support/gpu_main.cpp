// main() of the tests on a GPU: 77 (skipped) without a device, 1 where SLIP_REQUIRE_GPU=1 asks for one.
#include <gtest/gtest.h>

#include "support/gpu_required.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int without = slip::testing::without_gpu();
  return without != 0 ? without : RUN_ALL_TESTS();
}
