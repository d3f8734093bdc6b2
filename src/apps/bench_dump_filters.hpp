// Filters of HDF5 on features: what they save, and how fast one core is with them. Nothing touches a disk.
#pragma once
#include <cstdint>

#include "core/bf16.hpp"

namespace slip {

struct Filter {
  const char* name;
  bool shuffle;
  int deflate;  // level
};
// The second is what `dump.compress=deflate` takes (data/FORMAT.md).
inline constexpr Filter kFilters[] = {{"deflate 1", false, 1},
                                      {"shuffle, deflate 1", true, 1},
                                      {"shuffle, deflate 4", true, 4},
                                      {"shuffle, deflate 6", true, 6}};

struct FilterTimes {
  double write_s = 0, read_s = 0;  // of one core
  int64_t stored = 0;              // bytes
};
// `bytes` of features, `width` values a token, in chunks of about 8 MiB.
FilterTimes time_filter(const Filter&, const Bf16* features, int64_t bytes, int64_t width);

// Made-up features as filters find them: normal, with a scale for each channel (log-normal, as the channels
// of trained targets have), the same at every call.
void make_features(Bf16* out, int64_t values, int64_t width);

}  // namespace slip
