#include "core/nearest.hpp"

#include <algorithm>
#include <numeric>

namespace slip {

int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<int64_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int64_t diagonal = row[0];
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t up = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = up;
    }
  }
  return row[b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  int64_t best = std::max<int64_t>(2, static_cast<int64_t>(word.size()) / 3) + 1;
  std::string found;
  for (const std::string& c : candidates) {
    const int64_t d = edit_distance(word, c);
    if (d < best) best = d, found = c;
  }
  return found;
}

}  // namespace slip
