// Learning rate by optimizer step (0-based). Warm-up: lr (t+1)/w for t < w = int(warmup_ratio * T); then,
// with f = (t - w) / (T - w) and r = min_lr_ratio: cosine lr (r + (1-r)(1 + cos pi f)/2); linear lr (r +
// (1-r)(1-f)); wsd: lr until the last fifth of the run, then a cosine to r; constant lr. dflash.md 4.
#pragma once
#include <cstdint>

#include "core/config.hpp"

namespace slip {
double learning_rate(const TrainConfig&, int64_t step, int64_t total);
}  // namespace slip
