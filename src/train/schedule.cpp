#include "train/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace slip {

double learning_rate(const TrainConfig& c, int64_t step, int64_t total) {
  const int64_t warm = static_cast<int64_t>(c.warmup_ratio * static_cast<double>(total));
  if (step < warm) return c.lr * static_cast<double>(step + 1) / static_cast<double>(warm);
  const auto cosine = [&](int64_t from) {
    const double f = total > from
                         ? std::min(1.0, static_cast<double>(step - from) / static_cast<double>(total - from))
                         : 1.0;
    return c.lr * (c.min_lr_ratio + (1 - c.min_lr_ratio) * 0.5 * (1 + std::cos(std::numbers::pi * f)));
  };
  if (c.schedule == "constant") return c.lr;
  if (c.schedule == "wsd") {
    const int64_t decay = std::max(warm, total - total / 5);
    return step < decay ? c.lr : cosine(decay);
  }
  if (c.schedule == "linear") {
    const double f = total > warm
                         ? std::min(1.0, static_cast<double>(step - warm) / static_cast<double>(total - warm))
                         : 1.0;
    return c.lr * (c.min_lr_ratio + (1 - c.min_lr_ratio) * (1 - f));
  }
  return cosine(warm);
}

}  // namespace slip
