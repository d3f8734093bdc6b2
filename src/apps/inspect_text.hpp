// How `inspect` writes facts down.
#pragma once
#include <string>

#include "apps/inspect.hpp"

namespace slip {

std::string fact_row(const std::string& label, const std::string& value);  // "  label        value\n"
std::string size_text(int64_t bytes);                                      // "2.15 MB"
// Bytes as text that a terminal can show: UTF-8 and line ends pass, other control bytes and stray ones become
// \x1b.
std::string printable(const std::string& bytes);
std::string value_text(const Facts&);  // a number short, text as it is, "-" for null
// The value under `key`, or null: for objects of files that may lack it.
Facts value_or_null(const Facts& object, const std::string& key);
// Lines under the last row, indented below its value.
std::string indented(const std::string& lines, int64_t columns);
bool is_there(const std::string& path);  // false as well where that cannot be found out

}  // namespace slip
