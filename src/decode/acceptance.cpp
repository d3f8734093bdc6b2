#include "decode/acceptance.hpp"

namespace slip {

Acceptance acceptance(std::span<const Response* const> responses, int64_t block) {
  Acceptance a;
  a.histogram.resize(static_cast<size_t>(block) + 1);
  a.per_slot.resize(static_cast<size_t>(block));
  int64_t emitted = 0, advanced = 0, with_cycles = 0;
  for (const Response* r : responses) {
    ++a.responses;
    a.tokens += static_cast<int64_t>(r->tokens.size());
    if (r->cycles.empty()) continue;
    int64_t mine = 0;
    for (const Cycle& c : r->cycles) {
      mine += c.advance;
      ++a.histogram.at(static_cast<size_t>(c.advance));
    }
    const double cycles = static_cast<double>(r->cycles.size());
    const int64_t tokens = static_cast<int64_t>(r->tokens.size()) - 1;
    a.mean += static_cast<double>(tokens) / cycles;
    a.mean_raw += static_cast<double>(mine) / cycles;
    emitted += tokens;
    advanced += mine;
    a.cycles += static_cast<int64_t>(r->cycles.size());
    ++with_cycles;
  }
  if (a.cycles == 0) return a;
  const double cycles = static_cast<double>(a.cycles);
  a.mean /= static_cast<double>(with_cycles);
  a.mean_raw /= static_cast<double>(with_cycles);
  a.pooled = static_cast<double>(emitted) / cycles;
  a.pooled_raw = static_cast<double>(advanced) / cycles;
  int64_t reached = 0;
  for (size_t j = a.per_slot.size(); j-- > 0;) {
    reached += a.histogram[j + 1];
    a.per_slot[j] = static_cast<double>(reached) / cycles;
  }
  return a;
}

}  // namespace slip
