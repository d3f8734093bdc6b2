// Acceptance lengths of responses. `pooled`: (tokens up to the stop - 1) / cycles of all responses together;
// `mean`: the mean of that figure over responses. The `_raw` pair counts accepted + 1 of every cycle in full,
// past the stop too. Responses without a cycle (the first token ended them) are in no mean.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "decode/speculate.hpp"

namespace slip {

struct Acceptance {
  int64_t responses = 0, tokens = 0, cycles = 0;
  double pooled = 0, mean = 0, pooled_raw = 0, mean_raw = 0;
  std::vector<int64_t> histogram;  // (block + 1) cycles that advanced by 0, 1, .. block
  std::vector<double> per_slot;    // (block) share of the cycles whose drafts 1 .. j were accepted; slot 0: 1
  int64_t target_calls() const { return responses + cycles; }  // a prompt counts one
};
// All zero without a cycle.
Acceptance acceptance(std::span<const Response* const> responses, int64_t block);

}  // namespace slip
