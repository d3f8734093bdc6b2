// The options that `decode` and `generate` share: how prompts are answered, and on what.
#pragma once
#include <string>

#include "apps/options.hpp"

namespace slip {

struct AnswerOptions {
  int64_t max_new = 256, block = 0, seed = 0, documents = 0;
  double temperature = 0;
  std::string precision;  // fp32 or bf16
  bool share_gpu = false;
  Device device = Device::cpu;

  void add_to(Options&);
  void settle();  // after Options::parse: checks, and settles device and precision; fail_usage
  bool bf16() const { return precision == "bf16"; }

 private:
  std::string temperature_text_ = "0", device_text_ = "auto";
};

}  // namespace slip
