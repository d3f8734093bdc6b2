#include "io/json_file.hpp"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "core/check.hpp"
#include "io/file.hpp"

namespace slip {

using nlohmann::json;

std::string json_complaint(const json::exception& e) {
  const std::string text = e.what();
  const size_t end = text.find("] ");
  return end == std::string::npos ? text : text.substr(end + 2);
}

json read_json_file(const std::string& path, int64_t limit) {
  const std::string text = read_text(path, limit);
  if (text.find('\0') != std::string::npos) fail_input(fmt::format("{}: not JSON: it holds a byte 0", path));
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      fail_input(fmt::format("{}: the key {} occurs twice in one object", path, value.dump()));
    }
    return true;
  };
  json value;
  try {
    value = json::parse(text, watch);
  } catch (const json::exception& e) {
    fail_input(fmt::format("{}: not JSON: {}", path, json_complaint(e)));
  }
  if (!value.is_object())
    fail_input(fmt::format("{}: a JSON object is expected, found {}", path, value.type_name()));
  return value;
}

}  // namespace slip
