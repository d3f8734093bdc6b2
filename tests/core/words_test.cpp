#include <gtest/gtest.h>

#include "core/config.hpp"
#include "core/progress.hpp"

namespace slip {
namespace {

TEST(NearestKey, SectionForgotten) {
  EXPECT_EQ(nearest_key("lr"), "train.lr");
  EXPECT_EQ(nearest_key("row_tokens"), "data.row_tokens");
  EXPECT_EQ(nearest_key("train.lrr"), "train.lr");
  EXPECT_EQ(nearest_key("tran.steps"), "train.steps");
}

TEST(Progress, Text) {
  EXPECT_EQ(progress_text("decoding", 25, 100, "prompts", 50),
            "decoding: 25 of 100 prompts, 0.5 a second, left 2:30");
  EXPECT_EQ(progress_text("reading", 2e9, 6e9, "bytes", 2), "reading: 2000 of 6000 MB, 1000 MB/s, left 0:04");
  EXPECT_EQ(progress_text("decoding", 0, 100, "prompts", 1), "decoding: 0 of 100 prompts, 0 a second");
}

TEST(Progress, Clock) {
  EXPECT_EQ(clock_text(0), "0:00");
  EXPECT_EQ(clock_text(59.6), "1:00");
  EXPECT_EQ(clock_text(3723), "1:02:03");
  EXPECT_EQ(clock_text(-1), "0:00");
}

}  // namespace
}  // namespace slip
