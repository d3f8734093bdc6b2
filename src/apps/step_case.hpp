// The case file of `step`: weights, features, tokens and anchors of one training step (layout:
// tests/golden/README.md).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "io/safetensors.hpp"
#include "train/step.hpp"

namespace slip {

struct StepCase {
  DrafterModel model;
  LossRule rule;
  LabelMask label_mask;
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  std::vector<int> anchors;  // as the file lists them
  std::vector<float> features, embed, head;
  std::vector<float> weights;  // flat, as parameter_layout has them
};

// fail_input names the file, the item, what is declared and what is found.
StepCase read_step_case(const SafetensorsFile&);

}  // namespace slip
