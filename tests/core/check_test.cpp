#include "core/check.hpp"

#include <gtest/gtest.h>

namespace slip {
namespace {

std::string said(void (*fail)(const std::string&, Where), const std::string& message) {
  try {
    fail(message, Where::current());
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing";
}

TEST(Check, WhatComesFromOutsideStaysOnOneLine) {
  for (const auto fail : {fail_input, fail_usage}) {
    EXPECT_EQ(said(fail, "a: tensor x\ny\x1b[2J\t\x7f is bad"), "a: tensor x\\ny\\x1b[2J\\x09\\x7f is bad");
    EXPECT_EQ(said(fail, "dump/模型 ø/日本 語"), "dump/模型 ø/日本 語");
    const std::string endless = said(fail, std::string(1 << 20, 'n'));
    EXPECT_LT(endless.size(), 8100u);
    EXPECT_NE(endless.find("1048576 bytes"), std::string::npos);
  }
  EXPECT_EQ(said(fail, "a table\nof memory"), "a table\nof memory");  // of the program itself
}

}  // namespace
}  // namespace slip
