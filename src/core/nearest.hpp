// What somebody may have meant: the nearest known word to a misspelt one.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace slip {

// Insertions, deletions and replacements of bytes that lead from one to the other (Levenshtein).
int64_t edit_distance(std::string_view a, std::string_view b);
// The candidate of smallest distance, the first of equals; empty when none is within a third of the word's
// length (2 for short ones).
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace slip
