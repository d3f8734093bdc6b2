// Command lines and configuration files (Boost.ProgramOptions; only options.cpp includes it).
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "device/queue.hpp"

namespace slip {

using Arguments = std::vector<std::string>;  // what follows the command's name

// Options of one command. `parse` returns false after printing the help that --help asked for; every mistake
// is fail_usage and names the option.
class Options {
 public:
  Options(std::string command, std::string usage, std::string about);
  ~Options();
  Options& flag(const std::string& name, bool* value, const std::string& help);
  Options& text(const std::string& name, std::string* value, const std::string& help);  // optional
  Options& need(const std::string& name, std::string* value, const std::string& help);  // must be given
  Options& number(const std::string& name, int64_t* value, const std::string& help);
  Options& list(const std::string& name, std::vector<std::string>* values, const std::string& help);
  Options& positional(std::vector<std::string>* values, const std::string& name, const std::string& help);
  Options& footer(std::string text);  // printed after the options by --help
  bool parse(const Arguments&);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads an INI file and --set key=value pairs over it; unknown keys are refused with the nearest known one,
// all contradictions are reported at once.
Config load_config(const std::string& path, const std::vector<std::string>& sets,
                   ConfigUse = ConfigUse::train);
std::string configuration_help();  // every key with default and meaning

// --device cpu|cuda|auto; auto takes CUDA when a device is visible.
Device choose_device_kind(const std::string& text);
// --precision bf16|fp32 on that device; the CPU computes in fp32 only and refuses bf16.
bool bf16_asked(const std::string& precision, Device device);

}  // namespace slip
