// Entries of data.tokens: what is a weight and what a name, and what is refused.
#include "io/sources.hpp"

#include <gtest/gtest.h>

#include "io/files.hpp"
#include "io/tokens.hpp"

namespace slip::testing {
namespace {

struct Files {
  TempFolder folder;
  std::string a = write_file(folder / "a.h5", ""), b = write_file(folder / "b.h5", "");
  std::vector<Source> expand(const std::string& text) const {
    return expand_sources("data.tokens", text, expand_globs);
  }
};

TEST(Sources, WeightsAndPlainEntries) {
  const Files f;
  const std::vector<Source> s = f.expand(f.a + "@2, " + (f.folder / "b*.h5") + " @ 0.5 ,");
  ASSERT_EQ(s.size(), 2u);
  EXPECT_EQ(s[0].pattern, f.a);
  EXPECT_EQ(s[0].weight, 2000000);
  EXPECT_EQ(s[0].paths, std::vector{f.a});
  EXPECT_EQ(s[1].weight, 500000);
  EXPECT_EQ(s[1].paths, std::vector{f.b});
  EXPECT_TRUE(weighted(s));
  EXPECT_EQ(f.expand(f.a + "@0.000001")[0].weight, 1);
  EXPECT_EQ(f.expand(f.a + "@1e3")[0].weight, kLargestWeight);
  EXPECT_EQ(f.expand(f.a + "@0.3333333")[0].weight, 333333);  // to the millionth
  EXPECT_FALSE(weighted(f.expand(f.a + "@1.0")));
  EXPECT_EQ(weight_text(1500000), "1.5");
  EXPECT_EQ(weight_text(kWeightOnce), "1");
}

TEST(Sources, AnAtSignInAName) {
  const TempFolder folder;
  const std::string named = write_file(folder / "data@v2.h5", "");
  std::filesystem::create_directories(folder / "me@home");
  const std::string inside = write_file(folder / "me@home/x.h5", "");
  const auto expand = [](const std::string& text) {
    return expand_sources("data.tokens", text, expand_globs);
  };
  EXPECT_EQ(expand(named)[0].paths, std::vector{named});
  EXPECT_EQ(expand(named + "@3")[0].weight, 3000000);
  EXPECT_EQ(expand(named + "@3")[0].paths, std::vector{named});
  EXPECT_EQ(expand(folder / "me@home/*.h5")[0].paths, std::vector{inside});
  EXPECT_EQ(expand((folder / "data@v*.h5") + "@1")[0].paths, std::vector{named});
}

TEST(Sources, WhatIsNoWeight) {
  const Files f;
  const std::pair<const char*, const char*> cases[] = {
      {"@", "missing after '@'"},       {"@two", "'two' is not a number"}, {"@2x", "'2x' is not a number"},
      {"@0", "leave the entry out"},    {"@0.0", "leave the entry out"},   {"@-1", "-1 is not between"},
      {"@1001", "1001 is not between"}, {"@1e-9", "below 0.000001"},       {"@nan", "not a number"},
      {"@inf", "not a number"}};
  for (const auto& [weight, part] : cases)
    expect_refused([&, w = weight] { f.expand(f.b + "," + f.a + w); }, kUsage,
                   {"data.tokens", f.a + weight, part});
  expect_refused([&] { f.expand("@2"); }, kUsage, {"'@2'", "no file is named"});
  expect_refused([&] { f.expand(f.folder / "none*.h5@2"); }, kBadInput, {"none*.h5", "no such file"});
  expect_refused([&] { f.expand(" , "); }, kBadInput, {"data.tokens", "names no file"});
}

TEST(Sources, AFileOfTwoEntries) {
  const Files f;
  const std::string all = f.folder / "*.h5";
  // without weights: read once, by the first
  const std::vector<Source> plain = f.expand(f.b + "," + all);
  ASSERT_EQ(plain.size(), 2u);
  EXPECT_EQ(plain[1].paths, std::vector{f.a});
  EXPECT_EQ(f.expand(f.b + "," + f.b).size(), 1u);
  for (const std::string& text :
       {f.b + "@2," + all, f.b + "," + all + "@1", all + "@2," + f.folder.path() + "/./b.h5@2"})
    expect_refused([&] { f.expand(text); }, kUsage, {"b.h5 is named by", all, "one entry"});
}

}  // namespace
}  // namespace slip::testing
