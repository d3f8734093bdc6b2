#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/check.hpp"
#include "core/log.hpp"
#include "core/nearest.hpp"
#include "io/tokens.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

// A name that ends so belongs to a writer at work: it is never read.
bool is_partial(const std::string& path) { return path.ends_with(".partial"); }

// What may have been meant: a folder that is not there, or a file of nearly the same name.
std::string hint(const std::string& pattern) {
  const fs::path path(pattern), folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const auto wild = [](const std::string& s) { return s.find_first_of("*?[") != std::string::npos; };
  std::error_code ignored;
  if (wild(folder.string())) return "";
  if (!fs::is_directory(folder, ignored)) return fmt::format("; there is no folder {}", folder.string());
  if (wild(path.filename().string())) return "";
  std::vector<std::string> names;
  for (const fs::directory_entry& e : fs::directory_iterator(folder, ignored)) {
    const std::string name = e.path().filename().string();
    if (names.size() < 1000 && !is_partial(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  const std::string near = nearest(path.filename().string(), names);
  return near.empty() ? "" : fmt::format("; there is {}", (path.parent_path() / near).string());
}

std::vector<std::string> expand_one(const std::string& pattern) {
  std::error_code ignored;
  if (fs::exists(pattern, ignored)) {  // a name with brackets in it is first of all a name
    if (fs::is_directory(pattern, ignored)) {
      fail_input(
          fmt::format("{}: a folder; name its shards: {}", pattern, (fs::path(pattern) / "*.h5").string()));
    }
    if (is_partial(pattern))
      fail_input(fmt::format("{}: an unfinished file (.partial) is not read", pattern));
    return {pattern};
  }
  glob_t found{};
  const int rc = glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> paths;
  for (size_t i = 0; rc == 0 && i < found.gl_pathc; ++i) {
    const std::string path = found.gl_pathv[i];
    if (!is_partial(path) && !fs::is_directory(path, ignored)) paths.push_back(path);
  }
  globfree(&found);
  if (rc != 0 && rc != GLOB_NOMATCH) fail_input(fmt::format("{}: the pattern cannot be expanded", pattern));
  if (paths.empty())
    fail_input(fmt::format("{}: no such file, and no finished file matches it{}", pattern, hint(pattern)));
  std::sort(paths.begin(), paths.end());  // by bytes: the same order under every locale
  return paths;
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace

std::vector<std::string> expand_globs(const std::string& patterns) {
  std::vector<std::string> paths;
  std::set<fs::path> seen;
  for (size_t at = 0; at <= patterns.size();) {
    const size_t comma = std::min(patterns.find(',', at), patterns.size());
    const std::string pattern = trimmed(patterns.substr(at, comma - at));
    at = comma + 1;
    if (pattern.empty()) continue;
    for (const std::string& path : expand_one(pattern)) {
      std::error_code ignored;
      const fs::path real = fs::weakly_canonical(path, ignored);
      if (seen.insert(real.empty() ? fs::path(path) : real).second) {
        paths.push_back(path);
      } else {
        log_warn(fmt::format("{}: named twice, read once", path));
      }
    }
  }
  if (paths.empty()) fail_input(fmt::format("\"{}\" names no file", patterns));
  return paths;
}

}  // namespace slip
