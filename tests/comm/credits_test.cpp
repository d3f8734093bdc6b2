#include "comm/credits.hpp"

#include <gtest/gtest.h>

#include <random>

#include "core/check.hpp"

namespace slip {
namespace {

TEST(Credits, HandsOutEverySlotOnceAndThenNone) {
  Credits c(3);
  EXPECT_EQ(c.free(), 3);
  EXPECT_EQ(c.take(), 0);
  EXPECT_EQ(c.take(), 1);
  EXPECT_EQ(c.take(), 2);
  EXPECT_EQ(c.take(), std::nullopt);
  EXPECT_EQ(c.free(), 0);
  c.give_back(1);
  EXPECT_EQ(c.free(), 1);
  EXPECT_EQ(c.take(), 1);
  EXPECT_EQ(c.take(), std::nullopt);
}

TEST(Credits, GivingBackTwiceOrWhatDoesNotExistIsAnError) {
  Credits c(2);
  EXPECT_THROW(c.give_back(0), Error);  // never taken
  const int slot = c.take().value();
  c.give_back(slot);
  EXPECT_THROW(c.give_back(slot), Error);
  EXPECT_THROW(c.give_back(-1), Error);
  EXPECT_THROW(c.give_back(2), Error);
  EXPECT_EQ(c.free(), 2);
  EXPECT_THROW(Credits(0), Error);
}

TEST(Credits, AnyOrderOfEventsKeepsTheCount) {
  Credits c(5);
  std::mt19937 random(7);
  std::vector<int> out;
  int refused = 0;
  for (int i = 0; i < 10000; ++i) {
    if (random() % 2 == 0) {
      if (const auto slot = c.take()) {
        for (const int other : out) ASSERT_NE(other, *slot);
        out.push_back(*slot);
      } else {
        ++refused;
        ASSERT_EQ(out.size(), 5u);
      }
    } else if (!out.empty()) {
      const size_t k = random() % out.size();
      c.give_back(out[k]);
      out.erase(out.begin() + static_cast<long>(k));
    }
    ASSERT_EQ(c.free(), 5 - static_cast<int>(out.size()));
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace slip
