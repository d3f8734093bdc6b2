#include "core/config.hpp"

#include <gmock/gmock.h>

#include <map>
#include <set>
#include <sstream>

namespace slip {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Config complete() {
  Config c;
  c.target.path = "target";
  c.drafter.config = "drafter.json";
  c.data.tokens = "a.h5,b-*.h5";
  c.train.steps = 10;
  c.log.dir = "runs/a";
  return c;
}

// What an INI reader makes of the text.
std::map<std::string, std::string> read_ini(const std::string& text) {
  std::map<std::string, std::string> out;
  std::istringstream in(text);
  std::string section;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line[0] == '[') {
      section = line.substr(1, line.find(']') - 1);
      continue;
    }
    const size_t equals = line.find(" = ");
    EXPECT_NE(equals, std::string::npos) << line;
    EXPECT_TRUE(out.emplace(section + "." + line.substr(0, equals), line.substr(equals + 3)).second) << line;
  }
  return out;
}

TEST(Config, PrintsEveryKeyOnceWithItsValueAndHelp) {
  Config c = complete();
  c.train.lr = 6e-4;
  c.data.seed = 18446744073709551615u;
  c.data.shuffle = false;
  const std::string text = print_config(c);
  const auto printed = read_ini(text);
  std::set<std::string> sections;
  size_t keys = 0;
  fields(c, [&](const std::string& key, const auto&, const std::string& help) {
    EXPECT_EQ(printed.count(key), 1u) << key;
    EXPECT_THAT(text, HasSubstr("# " + help + "\n"));
    sections.insert(key.substr(0, key.find('.')));
    ++keys;
  });
  EXPECT_EQ(printed.size(), keys);
  EXPECT_EQ(static_cast<size_t>(std::count(text.begin(), text.end(), '[')), sections.size())
      << "a section is opened twice";
  EXPECT_EQ(printed.at("train.lr"), "0.0006");
  EXPECT_EQ(printed.at("data.seed"), "18446744073709551615");
  EXPECT_EQ(printed.at("data.shuffle"), "false");
  EXPECT_EQ(printed.at("data.tokens"), "a.h5,b-*.h5");
}

// A number that is printed and read again is the same number.
TEST(Config, PrintsNumbersExactly) {
  for (const double lr : {6e-4, 0.1, 1.0 / 3, 1e-300, 5.0}) {
    Config c = complete();
    c.train.lr = lr;
    EXPECT_EQ(std::stod(read_ini(print_config(c)).at("train.lr")), lr);
  }
}

TEST(Config, KeysHaveASectionAndDoNotRepeat) {
  std::set<std::string> seen;
  const Config c;
  fields(c, [&](const std::string& key, const auto&, const std::string& help) {
    EXPECT_TRUE(seen.insert(key).second) << key;
    EXPECT_EQ(std::count(key.begin(), key.end(), '.'), 1) << key;
    EXPECT_EQ(help.find('\n'), std::string::npos) << key;
    EXPECT_FALSE(help.empty()) << key;
  });
}

TEST(Config, NearestKey) {
  EXPECT_EQ(nearest_key("train.stepps"), "train.steps");
  EXPECT_EQ(nearest_key("data.epoch"), "data.epochs");
  EXPECT_EQ(nearest_key("train.lr"), "train.lr");
  EXPECT_EQ(nearest_key("traingamma"), "train.gamma");
}

TEST(Config, DefaultsNeedOnlyWhatTheyName) {
  EXPECT_THAT(contradictions(complete()), IsEmpty());
  const auto all = contradictions(Config{});
  for (const char* key : {"target.path", "data.tokens", "drafter.config", "log.dir", "train.steps"}) {
    EXPECT_THAT(all, Contains(HasSubstr(key)));
  }
  EXPECT_EQ(all.size(), 5u);
}

TEST(Config, NamesEveryContradictionAtOnce) {
  Config c = complete();
  c.train.loss = "kl";
  c.train.rows_per_step = 0;
  c.train.lr = -1;
  c.train.clip = std::stod("nan");
  c.data.max_length = c.data.row_tokens + 1;
  c.roles.targets = "-1";
  const auto all = contradictions(c);
  EXPECT_THAT(all, Contains(AllOf(HasSubstr("train.loss"), HasSubstr("kl"), HasSubstr("dpace"))));
  EXPECT_THAT(all, Contains(AllOf(HasSubstr("train.rows_per_step"), HasSubstr("0"))));
  EXPECT_THAT(all, Contains(HasSubstr("train.lr")));
  EXPECT_THAT(all, Contains(HasSubstr("train.clip")));
  EXPECT_THAT(all, Contains(AllOf(HasSubstr("data.max_length"), HasSubstr("4097"), HasSubstr("4096"))));
  EXPECT_THAT(all, Contains(HasSubstr("roles.targets")));
  EXPECT_EQ(all.size(), 6u);
}

TEST(Config, EitherOrKeys) {
  Config c = complete();
  c.data.features = "dump-*.h5";  // both: documents that are there are read, the others are computed
  EXPECT_THAT(contradictions(c), IsEmpty());
  c.drafter.init_from = "published";
  EXPECT_EQ(contradictions(c).size(), 1u);
  c.data.tokens.clear(), c.drafter.config.clear();
  EXPECT_THAT(contradictions(c), IsEmpty());
  c.train.gamma = -0.5;
  EXPECT_THAT(contradictions(c), Contains(HasSubstr("train.gamma")));
  c.train.gamma = -1;
  EXPECT_THAT(contradictions(c), IsEmpty());
}

TEST(Config, DumpNeedsNoRunOfADrafter) {
  Config c = complete();
  c.dump.dir = "features";
  EXPECT_THAT(contradictions(c), IsEmpty());
  EXPECT_THAT(contradictions(c, ConfigUse::dump), IsEmpty());
  c.log.dir.clear(), c.train.steps = 0;
  EXPECT_EQ(contradictions(c).size(), 2u);
  EXPECT_THAT(contradictions(c, ConfigUse::dump), IsEmpty());
  c.dump.span = "some", c.dump.bf16 = "half", c.dump.compress = "zstd", c.dump.shard_bytes = 1;
  EXPECT_EQ(contradictions(c, ConfigUse::dump).size(), 4u);
  c = complete();
  EXPECT_THAT(contradictions(c, ConfigUse::dump), ElementsAre(HasSubstr("dump.dir")));
  c.data.tokens.clear(), c.data.features = "dump", c.dump.dir = "other";
  EXPECT_THAT(contradictions(c), ElementsAre(HasSubstr("dump.dir")));
}

TEST(Config, CudnnComputesInBf16) {
  Config c = complete();
  c.target.attention = "cudnn";
  EXPECT_THAT(contradictions(c), IsEmpty());
  c.train.precision = "fp32";
  EXPECT_THAT(contradictions(c), ElementsAre(AllOf(HasSubstr("target.attention"), HasSubstr("fp32"))));
  c.target.attention = "native";
  EXPECT_THAT(contradictions(c), IsEmpty());
}

}  // namespace
}  // namespace slip
