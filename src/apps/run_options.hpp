// The options that train and plan share.
#pragma once
#include "apps/options.hpp"
#include "launch/inputs.hpp"

namespace slip {

struct RunArguments {
  std::string config, device = "auto", resume = "none";
  std::vector<std::string> sets;
  int64_t extend = 0;
  bool print_config = false, allow_changes = false, share_gpu = false, synthetic = false, publish = false;
};
RunOptions run_options(const RunArguments&);

}  // namespace slip
