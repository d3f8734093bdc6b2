#include "comm/launcher.hpp"

#include <gtest/gtest.h>

#include <map>

namespace slip {
namespace {

using Variables = std::map<std::string, std::string>;

LauncherEnv env(const Variables& v) {
  return launcher_env([&](const char* name) {
    const auto found = v.find(name);
    return found == v.end() ? nullptr : found->second.c_str();
  });
}

bool refused(int mpi_size, const Variables& v) { return !launcher_problem(mpi_size, env(v)).empty(); }

TEST(Launcher, TheRankAsTheLauncherSaysIt) {
  EXPECT_EQ(env({}).rank, -1);
  EXPECT_EQ(env({{"SLURM_PROCID", "3"}}).rank, -1);  // a batch script has one too
  EXPECT_EQ(env({{"OMPI_COMM_WORLD_RANK", "0"}, {"PMIX_RANK", "7"}}).rank, 0);
  EXPECT_EQ(env({{"PMIX_RANK", "2"}}).rank, 2);
  EXPECT_EQ(env({{"PMI_RANK", "1"}}).rank, 1);
}

TEST(Launcher, G5TasksOfSrunThatDoNotKnowEachOther) {
  const Variables v = {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "2"}, {"SLURM_STEP_NUM_TASKS", "4"}};
  for (const int size : {0, 1}) {
    const std::string text = launcher_problem(size, env(v));
    EXPECT_NE(text.find("srun --mpi=pmix"), std::string::npos) << text;
    EXPECT_NE(text.find("mpirun"), std::string::npos) << text;
    EXPECT_NE(text.find("4 tasks"), std::string::npos) << text;
  }
  EXPECT_FALSE(refused(4, v));
  // Older Slurms do not set the step's variable.
  EXPECT_TRUE(refused(1, {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "2"}}));
}

TEST(Launcher, PmixOfAnotherVersionIsKnownAfterTheStartOnly) {
  const Variables v = {
      {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "2"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"PMIX_RANK", "2"}};
  EXPECT_FALSE(refused(0, v));
  EXPECT_TRUE(refused(1, v));
  EXPECT_FALSE(refused(4, v));
}

TEST(Launcher, OnePlainProcessInABatchScriptIsLegitimate) {
  EXPECT_FALSE(refused(1, {}));
  EXPECT_FALSE(refused(1, {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "17"}}));
  EXPECT_FALSE(refused(0, {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "17"}}));
  // srun --pty bash, or salloc with an interactive step
  EXPECT_FALSE(refused(1, {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}));
  EXPECT_FALSE(refused(1, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}, {"PMIX_RANK", "0"}}));
}

TEST(Launcher, MpirunDecidesInsideASlurmStep) {
  const Variables one = {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}};
  EXPECT_FALSE(refused(0, one));
  EXPECT_FALSE(refused(1, one));
  const Variables many = {{"OMPI_COMM_WORLD_SIZE", "4"}};
  EXPECT_FALSE(refused(0, many));
  EXPECT_FALSE(refused(4, many));
  EXPECT_TRUE(refused(1, many));  // mpirun of another MPI
  EXPECT_TRUE(refused(2, many));
  EXPECT_TRUE(refused(1, {{"PMI_SIZE", "4"}, {"PMI_RANK", "1"}}));
}

TEST(Launcher, OddValuesAreNoNumbers) {
  EXPECT_FALSE(refused(1, {{"SLURM_STEP_NUM_TASKS", ""}}));
  EXPECT_FALSE(refused(1, {{"SLURM_STEP_NUM_TASKS", "4x"}}));
  EXPECT_FALSE(refused(1, {{"SLURM_STEP_NUM_TASKS", "99999999999999999999"}}));
}

}  // namespace
}  // namespace slip
