// The options that train, dump and plan share.
#pragma once
#include "apps/options.hpp"
#include "comm/heartbeat.hpp"
#include "launch/inputs.hpp"
#include "launch/start.hpp"

namespace slip {

struct RunArguments {
  std::string config, device = "auto", resume = "none";
  std::vector<std::string> sets;
  int64_t extend = 0;
  bool print_config = false, allow_changes = false, share_gpu = false, synthetic = false, publish = false;
};
RunOptions run_options(const RunArguments&, ConfigUse = ConfigUse::train);
HeartbeatTimes heartbeat_times(const CommConfig&);
Facts facts_of(const RunArguments&, const RunOptions&);  // what must be the same on all ranks
inline constexpr double kStart_s = 60;

}  // namespace slip
