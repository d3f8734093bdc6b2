// The options that `decode` and `generate` share: what answers which prompts, how, and on what.
#pragma once
#include <string>

#include "apps/options.hpp"

namespace slip {

struct AnswerOptions {
  std::string target, drafter, prompts;       // folders (drafter empty: plain decoding) and token shards
  bool untrained = false, synthetic = false;  // weights: a new drafter's; made up for both
  int64_t max_new = 256, block = 0, seed = 0, documents = 0;
  double temperature = 0;
  std::string precision;  // fp32 or bf16
  bool share_gpu = false;
  Device device = Device::cpu;

  void add_to(Options&, bool needs_drafter);
  void settle();  // after Options::parse: checks, and settles device and precision; fail_usage
  bool bf16() const { return precision == "bf16"; }

 private:
  std::string temperature_text_ = "0", device_text_ = "auto";
};

}  // namespace slip
