// JSON from files. Include it in .cpp files only: nlohmann's header is large.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace slip {

// The object that a JSON file of at most `limit` bytes holds. Syntax errors, anything but an object and keys
// that occur twice are fail_input, with the file.
nlohmann::json read_json_file(const std::string& path, int64_t limit = 16 << 20);

// A parser's complaint without the library's own name in front.
std::string json_complaint(const nlohmann::json::exception&);

}  // namespace slip
