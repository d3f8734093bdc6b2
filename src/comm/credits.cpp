#include "comm/credits.hpp"

#include <fmt/format.h>

#include "core/check.hpp"

namespace slip {

Credits::Credits(int slots) : free_(slots) {
  require(slots > 0, "Credits: at least one slot");
  taken_.assign(static_cast<size_t>(slots), false);
}

std::optional<int> Credits::take() {
  for (size_t i = 0; i < taken_.size(); ++i) {
    if (taken_[i]) continue;
    taken_[i] = true;
    --free_;
    return static_cast<int>(i);
  }
  return std::nullopt;
}

void Credits::give_back(int slot) {
  if (slot < 0 || slot >= slots()) fail(fmt::format("slot {} given back, there are {}", slot, slots()));
  const auto i = static_cast<size_t>(slot);
  if (!taken_[i]) fail(fmt::format("slot {} given back twice", slot));
  taken_[i] = false;
  ++free_;
}

}  // namespace slip
