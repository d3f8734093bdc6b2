#include "core/check.hpp"

namespace slip {

void fail(const std::string& message, Where at) { throw Error(message, kFailed, at); }
void fail_usage(const std::string& message, Where at) { throw Error(message, kUsage, at); }
void fail_input(const std::string& message, Where at) { throw Error(message, kBadInput, at); }
void fail_peer(const std::string& message, Where at) { throw Error(message, kPeerFailed, at); }

}  // namespace slip
