#include "launch/decode_figures.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace slip {

Acceptance acceptance_of(const std::vector<Response>& responses, int64_t block) {
  std::vector<const Response*> all;
  for (const Response& r : responses) all.push_back(&r);
  return acceptance(all, block);
}

std::vector<FamilyAcceptance> acceptance_by_family(const Prompts& prompts,
                                                   const std::vector<Response>& responses, int64_t block) {
  std::vector<FamilyAcceptance> out;
  if (prompts.families.empty()) return out;
  const auto add = [&](int family, const std::string& name) {
    std::vector<const Response*> some;
    for (size_t i = 0; i < responses.size(); ++i)
      if (prompts.list[i].family == family) some.push_back(&responses[i]);
    if (!some.empty()) out.push_back({name, acceptance(some, block)});
  };
  for (size_t f = 0; f < prompts.families.size(); ++f) add(static_cast<int>(f), prompts.families[f]);
  add(-1, "(none)");
  return out;
}

nlohmann::ordered_json acceptance_json(const Acceptance& a) {
  return {{"documents", a.responses},   {"tokens", a.tokens},
          {"cycles", a.cycles},         {"target_calls", a.target_calls()},
          {"pooled", a.pooled},         {"mean", a.mean},
          {"pooled_raw", a.pooled_raw}, {"mean_raw", a.mean_raw},
          {"histogram", a.histogram},   {"per_slot", a.per_slot}};
}

nlohmann::ordered_json families_json(const std::vector<FamilyAcceptance>& families) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const FamilyAcceptance& f : families) out[f.name] = acceptance_json(f.acceptance);
  return out;
}

}  // namespace slip
