// Files for tests: a folder that goes away, and what a call complained of.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/check.hpp"

namespace slip::testing {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "slip-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp: " + name);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline std::string write_file(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path);
  return path;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Complaint {
  int exit_code = 0;  // 0: none
  std::string text;
};
template <class F> Complaint complaint_of(F&& call) {
  try {
    call();
  } catch (const Error& e) {
    return {e.exit_code(), e.what()};
  }
  return {};
}

// The call fails with this exit code and a message of one line that holds every one of `parts`.
template <class F> void expect_refused(F&& call, int exit_code, const std::vector<std::string>& parts) {
  const Complaint c = complaint_of(call);
  EXPECT_EQ(c.exit_code, exit_code) << c.text;
  EXPECT_EQ(c.text.find('\n'), std::string::npos) << c.text;
  for (const std::string& part : parts) {
    EXPECT_NE(c.text.find(part), std::string::npos) << "wanted \"" << part << "\" in: " << c.text;
  }
}

}  // namespace slip::testing
