#include "io/sources.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>

#include "core/check.hpp"
#include "core/log.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

struct Entry {
  Source source;
  bool has_weight = false;
};

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

int64_t parse_weight(const std::string& key, const std::string& entry, const std::string& text) {
  const auto refuse = [&](const std::string& what) {
    fail_usage(fmt::format("{}: '{}': {}", key, entry, what));
  };
  if (text.empty()) refuse("a weight is missing after '@', as in shards/*.h5@2");
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value))
    refuse(fmt::format("the weight '{}' is not a number (where '@' belongs to the name: write @1 after it)",
                       text));
  const double most = static_cast<double>(kLargestWeight) / kWeightOnce;
  if (value == 0) refuse("weight 0 would draw nothing; leave the entry out");
  if (value < 0 || value > most)
    refuse(fmt::format("the weight {} is not between 0.000001 and {}", text, most));
  const int64_t weight = std::llround(value * static_cast<double>(kWeightOnce));
  if (weight == 0) refuse(fmt::format("the weight {} is below 0.000001", text));
  return weight;
}

Entry parse_entry(const std::string& key, const std::string& text) {
  const size_t at = text.rfind('@');
  std::error_code ignored;
  if (at == std::string::npos || text.find('/', at) != std::string::npos || fs::exists(text, ignored))
    return {{text, kWeightOnce, {}}, false};
  const std::string pattern = trimmed(text.substr(0, at));
  if (pattern.empty()) fail_usage(fmt::format("{}: '{}': no file is named before '@'", key, text));
  return {{pattern, parse_weight(key, text, trimmed(text.substr(at + 1))), {}}, true};
}

}  // namespace

std::string weight_text(int64_t weight) {
  return fmt::format("{}", static_cast<double>(weight) / static_cast<double>(kWeightOnce));
}

bool weighted(const std::vector<Source>& sources) {
  return std::any_of(sources.begin(), sources.end(), [](const Source& s) { return s.weight != kWeightOnce; });
}

std::vector<Source> expand_sources(const std::string& key, const std::string& patterns,
                                   const ExpandPaths& expand) {
  std::vector<Source> out;
  bool any = false;
  for (size_t at = 0; at <= patterns.size();) {
    const size_t comma = std::min(patterns.find(',', at), patterns.size());
    const std::string text = trimmed(patterns.substr(at, comma - at));
    at = comma + 1;
    if (text.empty()) continue;
    Entry e = parse_entry(key, text);
    any = any || e.has_weight;
    out.push_back(std::move(e.source));
  }
  if (out.empty()) fail_input(fmt::format("{}: \"{}\" names no file", key, patterns));
  std::map<fs::path, std::string> seen;  // file -> the pattern that named it first
  for (Source& s : out) {
    for (const std::string& path : expand(s.pattern)) {
      std::error_code ignored;
      const fs::path real = fs::weakly_canonical(path, ignored);
      const auto [first, fresh] = seen.emplace(real.empty() ? fs::path(path) : real, s.pattern);
      if (fresh) {
        s.paths.push_back(path);
      } else if (any) {
        fail_usage(
            fmt::format("{}: {} is named by '{}' and by '{}': with weights a file belongs to one entry", key,
                        path, first->second, s.pattern));
      } else {
        log_warn(fmt::format("{}: named twice, read once", path));
      }
    }
  }
  std::erase_if(out, [](const Source& s) { return s.paths.empty(); });
  return out;
}

}  // namespace slip
