// Sources of a mixture: the entries of `data.tokens`, each a glob and how often its documents are drawn.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace slip {

// A weight counts in millionths, so that what an epoch draws is exact arithmetic on every machine.
constexpr int64_t kWeightOnce = 1000000;
constexpr int64_t kLargestWeight = 1000 * kWeightOnce;

struct Source {
  std::string pattern;  // without its weight
  int64_t weight = kWeightOnce;
  std::vector<std::string> paths;
};
std::string weight_text(int64_t weight);  // 1500000 -> "1.5"

using ExpandPaths = std::function<std::vector<std::string>(const std::string& pattern)>;

// "chat/*.h5@2, code.h5@0.5, rest.h5" as sources, each expanded by itself. A weight is a decimal number above
// 0, of six decimals, up to 1000; it follows the last '@', unless a '/' comes after that or a file has this
// very name. fail_usage, one line that begins with `key`, for what is no weight, and for a file that two
// entries name when any of them has a weight; without weights such a file is read once, by the first entry,
// with a warning. `expand` refuses what matches nothing.
std::vector<Source> expand_sources(const std::string& key, const std::string& patterns,
                                   const ExpandPaths& expand);
// Whether any entry is drawn otherwise than once an epoch.
bool weighted(const std::vector<Source>&);

}  // namespace slip
