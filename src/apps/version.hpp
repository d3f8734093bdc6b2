#pragma once
#include <string>
namespace slip {
std::string version_text();  // commit, compiler and libraries, one a line
}
