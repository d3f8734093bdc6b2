#pragma once
#include <string>

#include "launch/start.hpp"

namespace slip {
std::string commit_text();   // "unknown" where the build was configured outside of git
std::string program_text();  // "slipstream 0.1.0 (commit)", for files that state their writer
Facts version_facts();       // this program, commit, compiler and libraries
std::string version_text();  // one a line
}  // namespace slip
