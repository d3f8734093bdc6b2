#include "launch/start.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace slip {
namespace {

using ::testing::HasSubstr;

std::string difference(const Facts& a, const Facts& b) {
  const Difference d = first_difference(a, b, "rank 0 on node01", "rank 3 on node02");
  EXPECT_EQ(d.found.empty(), d.remedy.empty());
  return d.found + d.remedy;
}

TEST(FirstDifference, NoneWhereAllIsAlike) {
  EXPECT_EQ(difference({}, {}), "");
  EXPECT_EQ(difference({{"MPI", "4.1.4"}, {"train.lr", "1"}}, {{"MPI", "4.1.4"}, {"train.lr", "1"}}), "");
}

TEST(FirstDifference, NamesValuesRanksAndWhatToTry) {
  const struct {
    const char *name, *remedy;
  } rows[] = {{"slipstream", "the same executable"}, {"commit", "the same executable"},
              {"compiler", "the same executable"},   {"CPU code", "the same executable"},
              {"MPI", "mpirun -x LD_LIBRARY_PATH"},  {"NCCL", "mpirun -x LD_LIBRARY_PATH"},
              {"--device", "srun --gpus-per-node"},  {"--device", "--device cpu"},
              {"--resume", "the same options"},      {"train.lr", "the same --config"}};
  for (const auto& row : rows) {
    const std::string said = difference({{"same", "1"}, {row.name, "left"}, {"z", "a"}},
                                        {{"same", "1"}, {row.name, "right"}, {"z", "b"}});
    EXPECT_THAT(said, HasSubstr(std::string(row.name) +
                                " is 'left' on rank 0 on node01 and 'right' on rank 3 on node02"));
    EXPECT_THAT(said, HasSubstr(row.remedy));
  }
}

TEST(FirstDifference, OtherProgramsHaveOtherFacts) {
  const Facts two = {{"MPI", "4"}, {"CUDA", "13"}}, one = {{"MPI", "4"}},
              other = {{"MPI", "4"}, {"HIP", "13"}};
  for (const auto& [a, b] : {std::pair{two, one}, {one, two}, {two, other}})
    EXPECT_THAT(difference(a, b), HasSubstr("rank 0 on node01 and rank 3 on node02 are different programs"));
}

}  // namespace
}  // namespace slip
