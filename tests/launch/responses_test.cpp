// A response survives the way between ranks bit by bit, and what is no response is refused.
#include "launch/responses.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace slip::testing {
namespace {

TEST(Responses, AsWordsAndBack) {
  Response r;
  r.tokens = {{5, 0.1f}, {270, INFINITY}, {-1, -0.0f}};
  r.cycles = {{int64_t{1} << 40, 8}, {3, 1}};
  r.stopped = true;
  const Response got = response_from(response_words(r));
  ASSERT_EQ(got.tokens.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got.tokens[i].token, r.tokens[i].token);
    EXPECT_EQ(std::signbit(got.tokens[i].margin), std::signbit(r.tokens[i].margin));
    EXPECT_EQ(got.tokens[i].margin, r.tokens[i].margin);
  }
  ASSERT_EQ(got.cycles.size(), 2u);
  EXPECT_EQ(got.cycles[0].start, r.cycles[0].start);
  EXPECT_EQ(got.cycles[0].advance, 8);
  EXPECT_EQ(got.cycles[1].advance, 1);
  EXPECT_TRUE(got.stopped);
}

TEST(Responses, WhatIsCutOrLiesIsRefused) {
  Response r;
  r.tokens = {{5, 1}};
  r.cycles = {{7, 2}};
  std::vector<int64_t> words = response_words(r);
  EXPECT_NO_THROW(response_from(words));
  for (size_t n = 0; n < words.size(); ++n)
    EXPECT_THROW(response_from(std::span(words).first(n)), Error) << n;
  for (const int64_t lie : {int64_t{-1}, int64_t{2}, INT64_MAX}) {
    words[0] = lie;
    EXPECT_THROW(response_from(words), Error) << lie;
  }
}

}  // namespace
}  // namespace slip::testing
