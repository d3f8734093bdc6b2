#include "core/nearest.hpp"

#include <gtest/gtest.h>

namespace slip {
namespace {

TEST(Nearest, Distance) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("trian", "train"), 2);
}

TEST(Nearest, OnlyWhatIsNear) {
  EXPECT_EQ(nearest("--rank", {"--json", "--ranks", "--set"}), "--ranks");
  EXPECT_EQ(nearest("trian.h5", {"heldout.h5", "train.h5"}), "train.h5");
  EXPECT_EQ(nearest("abc", {"xyz", "abx", "axc"}), "abx");  // the first of equals
  EXPECT_EQ(nearest("--whatever", {"--json", "--set"}), "");
  EXPECT_EQ(nearest("x", {}), "");
}

}  // namespace
}  // namespace slip
