#include "apps/inspect_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

namespace slip {
namespace {

// Length of the UTF-8 sequence that begins at `at`; 0: none does.
size_t utf8_length(const std::string& s, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned first = byte(at);
  const size_t n = first < 0x80                    ? 1
                   : first >= 0xc2 && first < 0xe0 ? 2
                   : first >= 0xe0 && first < 0xf0 ? 3
                   : first >= 0xf0 && first < 0xf5 ? 4
                                                   : 0;
  if (n == 0 || at + n > s.size()) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(at + i) & 0xc0u) != 0x80u) return 0;
  }
  const unsigned second = n > 1 ? byte(at + 1) : 0;  // overlong forms, surrogates, beyond U+10FFFF
  const bool wrong = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                     (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f) ||
                     (first == 0xc2 && second < 0xa0);  // C1 controls
  return wrong ? 0 : n;
}

}  // namespace

std::string fact_row(const std::string& label, const std::string& value) {
  return fmt::format("  {:<16}{}\n", label, value);
}

std::string size_text(int64_t bytes) {
  static constexpr std::array kUnits = {"kB", "MB", "GB", "TB", "PB"};
  if (bytes < 1000) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1000;
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) value /= 1000, ++unit;
  return fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string printable(const std::string& bytes) {
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    const size_t n = utf8_length(bytes, at);
    const unsigned char c = static_cast<unsigned char>(bytes[at]);
    const bool control = n == 1 && (c < 0x20 || c == 0x7f) && c != '\n';
    if (n == 0 || control) {
      out += c == '\t' ? "\\t" : c == '\r' ? "\\r" : fmt::format("\\x{:02x}", c);
      ++at;
    } else {
      out += bytes.substr(at, n);
      at += n;
    }
  }
  return out;
}

std::string value_text(const Facts& value) {
  if (value.is_null()) return "-";
  if (value.is_number_float()) {
    const double x = value.get<double>(), size = x < 0 ? -x : x;
    return size >= 1e4 && size < 1e9 ? fmt::format("{:.0f}", x) : fmt::format("{:.4g}", x);
  }
  if (value.is_string()) return printable(value.get<std::string>());
  return value.dump(-1, ' ', false, Facts::error_handler_t::replace);
}

Facts value_or_null(const Facts& object, const std::string& key) {
  const auto at = object.find(key);
  return at == object.end() ? Facts() : *at;
}

std::string indented(const std::string& lines, int64_t columns) {
  std::string out;
  for (size_t at = 0; at < lines.size();) {
    const size_t end = std::min(lines.find('\n', at), lines.size());
    out += std::string(static_cast<size_t>(columns), ' ') + lines.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return out;
}

bool is_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace slip
