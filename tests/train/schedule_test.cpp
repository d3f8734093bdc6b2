// Learning rates: case D1, the vectors of dflash.md 4, and the ends of all four schedules.
#include "train/schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace slip {
namespace {

TrainConfig config(const char* schedule, double min_ratio = 0) {
  TrainConfig c;
  c.lr = 6e-4;
  c.warmup_ratio = 0.04;
  c.min_lr_ratio = min_ratio;
  c.schedule = schedule;
  return c;
}

TEST(Schedule, D1Cosine) {
  const TrainConfig c = config("cosine");
  const std::pair<int64_t, double> want[] = {{0, 1.5e-4}, {1, 3e-4},         {2, 4.5e-4}, {3, 6e-4},
                                             {4, 6e-4},   {50, 3.196209e-4}, {52, 3e-4}};
  for (const auto& [step, lr] : want) EXPECT_NEAR(learning_rate(c, step, 100), lr, 1e-10) << step;
  EXPECT_NEAR(learning_rate(c, 99, 100), 1.606e-7, 1e-10);
}

TEST(Schedule, EveryOneWarmsUpAlike) {
  for (const char* name : {"cosine", "wsd", "linear", "constant"}) {
    const TrainConfig c = config(name);
    for (int64_t t = 0; t < 4; ++t)
      EXPECT_DOUBLE_EQ(learning_rate(c, t, 100), 1.5e-4 * static_cast<double>(t + 1)) << name;
    EXPECT_DOUBLE_EQ(learning_rate(c, 4, 100), 6e-4) << name;
  }
}

TEST(Schedule, Linear) {
  EXPECT_DOUBLE_EQ(learning_rate(config("linear"), 52, 100), 3e-4);
  EXPECT_NEAR(learning_rate(config("linear"), 99, 100), 6e-4 / 96, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(config("linear", 0.1), 52, 100), 6e-4 * 0.55);
}

TEST(Schedule, WarmupStableDecay) {
  const TrainConfig c = config("wsd", 0.1);
  for (const int64_t t : {4, 40, 79, 80}) EXPECT_DOUBLE_EQ(learning_rate(c, t, 100), 6e-4) << t;
  EXPECT_NEAR(learning_rate(c, 90, 100), 6e-4 * 0.55, 1e-15);
  EXPECT_NEAR(learning_rate(c, 99, 100), 6e-4 * (0.1 + 0.45 * (1 + std::cos(std::numbers::pi * 0.95))),
              1e-15);
}

TEST(Schedule, ConstantAndFloor) {
  for (const int64_t t : {4, 50, 99}) EXPECT_DOUBLE_EQ(learning_rate(config("constant"), t, 100), 6e-4);
  EXPECT_NEAR(learning_rate(config("cosine", 0.1), 52, 100), 6e-4 * 0.55, 1e-15);
  for (const char* name : {"cosine", "wsd", "linear"}) {
    EXPECT_GE(learning_rate(config(name, 0.1), 99, 100), 6e-5) << name;
    EXPECT_NEAR(learning_rate(config(name, 0.1), 100, 100), 6e-5, 1e-15) << name;  // and not beyond
    EXPECT_NEAR(learning_rate(config(name, 0.1), 140, 100), 6e-5, 1e-15) << name;
  }
}

TEST(Schedule, WithoutWarmup) {
  TrainConfig c = config("cosine");
  c.warmup_ratio = 0;
  EXPECT_DOUBLE_EQ(learning_rate(c, 0, 10), 6e-4);
  EXPECT_DOUBLE_EQ(learning_rate(c, 0, 1), 6e-4);
}

}  // namespace
}  // namespace slip
