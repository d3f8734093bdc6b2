// Acceptance of decoded prompts, in all and by document family: for `decode` and for a run's eval.jsonl.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "decode/acceptance.hpp"
#include "io/prompts.hpp"

namespace slip {

// One response a prompt, in their order.
Acceptance acceptance_of(const std::vector<Response>&, int64_t block);

struct FamilyAcceptance {
  std::string name;  // "(none)" for the documents without one
  Acceptance acceptance;
};
// Empty where no shard names families; families without a prompt are left out.
std::vector<FamilyAcceptance> acceptance_by_family(const Prompts&, const std::vector<Response>&,
                                                   int64_t block);

nlohmann::ordered_json acceptance_json(const Acceptance&);
nlohmann::ordered_json families_json(const std::vector<FamilyAcceptance>&);

}  // namespace slip
