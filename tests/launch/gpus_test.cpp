#include "launch/gpus.hpp"

#include <gtest/gtest.h>

namespace slip {
namespace {

GpuId id(char c) {
  GpuId g{};
  g.fill(c);
  return g;
}

TEST(SharedGpus, NamesTheRanksAndTheGpu) {  // cases.md G8
  const std::string problem = shared_gpus({id('a'), id('b'), id('b'), id('c')});
  EXPECT_NE(problem.find("ranks 1 and 2"), std::string::npos) << problem;
  EXPECT_NE(problem.find("62626262"), std::string::npos) << problem;  // 'b'
}

TEST(SharedGpus, QuietWhenEachRankHasItsOwn) {
  EXPECT_EQ(shared_gpus({id('a'), id('b'), id('c')}), "");
  EXPECT_EQ(shared_gpus({}), "");
}

}  // namespace
}  // namespace slip
