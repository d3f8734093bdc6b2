#pragma once
#include <string>

#include "launch/start.hpp"

namespace slip {
std::string commit_text();   // "unknown" where the build was configured outside of git
Facts version_facts();       // this program, commit, compiler and libraries
std::string version_text();  // one a line
}  // namespace slip
