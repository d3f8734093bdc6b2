#include "launch/gpus.hpp"

#include <gtest/gtest.h>

#include "device/peak.hpp"

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

TEST(DeclaredPeak, LongerNamesFirst) {
  EXPECT_EQ(declared_bf16_flops("NVIDIA H200"), 989.4e12);
  EXPECT_EQ(declared_bf16_flops("NVIDIA H200 NVL"), 835.5e12);
  EXPECT_EQ(declared_bf16_flops("NVIDIA H100 80GB HBM3"), 989.4e12);
  EXPECT_EQ(declared_bf16_flops("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(declared_bf16_flops("NVIDIA GH200 480GB"), 989.4e12);
  EXPECT_EQ(declared_bf16_flops("NVIDIA GB200"), 2500e12);
  EXPECT_EQ(declared_bf16_flops("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(declared_bf16_flops("Something else"), 0);
  EXPECT_EQ(declared_bf16_flops(""), 0);
}

}  // namespace
}  // namespace slip
