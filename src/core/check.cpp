#include "core/check.hpp"

namespace slip {
namespace {

constexpr size_t kLongest = 8000;  // bytes of a message

// Names and values from outside stand in messages: they may not break the line or speak to the terminal.
std::string one_line(const std::string& message) {
  std::string out;
  for (const char c : message) {
    if (out.size() > kLongest) return out + "... (" + std::to_string(message.size()) + " bytes)";
    const unsigned char byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else {
      constexpr char digits[] = "0123456789abcdef";
      ((out += "\\x") += digits[byte >> 4]) += digits[byte & 15];
    }
  }
  return out;
}

}  // namespace

void fail(const std::string& message, Where at) { throw Error(message, kFailed, at); }
void fail_usage(const std::string& message, Where at) { throw Error(one_line(message), kUsage, at); }
void fail_input(const std::string& message, Where at) { throw Error(one_line(message), kBadInput, at); }
void fail_peer(const std::string& message, Where at) { throw Error(message, kPeerFailed, at); }

}  // namespace slip
