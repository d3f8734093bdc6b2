#pragma once
#include <string>
namespace slip {
std::string commit_text();   // "unknown" where the build was configured outside of git
std::string version_text();  // commit, compiler and libraries, one a line
}  // namespace slip
