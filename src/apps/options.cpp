#include "apps/options.hpp"

#include <fmt/format.h>

#include <boost/program_options.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "core/check.hpp"
#include "core/nearest.hpp"
#include "kernels/cuda_queue.hpp"

namespace slip {
namespace po = boost::program_options;

struct Options::Impl {
  std::string command, usage, about, footer;
  po::options_description options{"Options"};
  po::options_description hidden;
  po::positional_options_description positional;
  std::vector<std::string> required;

  std::string nearest_option(const std::string& word) const {
    std::vector<std::string> known;
    for (const auto& o : options.options()) known.push_back("--" + o->long_name());
    return nearest(word, known);
  }
};

Options::Options(std::string command, std::string usage, std::string about)
    : impl_(std::make_unique<Impl>()) {
  impl_->command = std::move(command);
  impl_->usage = std::move(usage);
  impl_->about = std::move(about);
  impl_->options.add_options()("help,h", "show this and stop");
}
Options::~Options() = default;

Options& Options::flag(const std::string& name, bool* value, const std::string& help) {
  impl_->options.add_options()(name.c_str(), po::bool_switch(value), help.c_str());
  return *this;
}
Options& Options::text(const std::string& name, std::string* value, const std::string& help) {
  impl_->options.add_options()(name.c_str(), po::value(value)->value_name(value->empty() ? "TEXT" : *value),
                               help.c_str());
  return *this;
}
Options& Options::need(const std::string& name, std::string* value, const std::string& help) {
  impl_->required.push_back(name);
  return text(name, value, help);
}
Options& Options::number(const std::string& name, int64_t* value, const std::string& help) {
  impl_->options.add_options()(name.c_str(), po::value(value)->value_name(std::to_string(*value)),
                               help.c_str());
  return *this;
}
Options& Options::list(const std::string& name, std::vector<std::string>* values, const std::string& help) {
  impl_->options.add_options()(name.c_str(), po::value(values)->composing()->value_name("TEXT"),
                               help.c_str());
  return *this;
}
Options& Options::positional(std::vector<std::string>* values, const std::string& name,
                             const std::string& help) {
  impl_->hidden.add_options()(name.c_str(), po::value(values), help.c_str());
  impl_->positional.add(name.c_str(), -1);
  return *this;
}
Options& Options::footer(std::string text) {
  impl_->footer = std::move(text);
  return *this;
}

bool Options::parse(const Arguments& arguments) {
  po::options_description all;
  all.add(impl_->options).add(impl_->hidden);
  po::variables_map map;
  try {
    po::store(po::command_line_parser(arguments)
                  .options(all)
                  .positional(impl_->positional)
                  .style(po::command_line_style::default_style & ~po::command_line_style::allow_guessing)
                  .run(),
              map);
    if (map.count("help") > 0) {
      std::cout << "usage: slipstream " << impl_->command << " " << impl_->usage << "\n\n"
                << impl_->about << "\n\n"
                << impl_->options << (impl_->footer.empty() ? "" : "\n" + impl_->footer);
      return false;
    }
    po::notify(map);
  } catch (const po::unknown_option& e) {
    const std::string near = impl_->nearest_option(e.get_option_name());
    fail_usage(fmt::format("{}: {}{} (slipstream {} --help shows the options)", impl_->command, e.what(),
                           near.empty() ? "" : "; the nearest is " + near, impl_->command));
  } catch (const po::error& e) {
    fail_usage(fmt::format("{}: {} (slipstream {} --help shows the options)", impl_->command, e.what(),
                           impl_->command));
  }
  for (const std::string& name : impl_->required) {
    if (map.count(name) == 0)
      fail_usage(fmt::format("{}: --{} is missing (slipstream {} --help shows the options)", impl_->command,
                             name, impl_->command));
  }
  return true;
}

namespace {

po::options_description config_description(Config& config) {
  po::options_description d("Configuration keys");
  fields(config, [&](const char* key, auto& value, const char* help) {
    d.add_options()(key, po::value(&value), help);
  });
  return d;
}

// What a key takes, and its default as an example.
std::string wanted(const std::string& key) {
  std::string out;
  const Config defaults;
  fields(defaults, [&]<class V>(const char* name, const V& value, const char*) {
    if (key != name) return;
    const char* const kind = std::is_same_v<V, bool>       ? "true or false"
                             : std::is_floating_point_v<V> ? "a number"
                             : std::is_unsigned_v<V>       ? "a whole number from 0"
                             : std::is_integral_v<V>       ? "a whole number"
                                                           : "text";
    out = fmt::format("{}; the default is {}", kind, value);
  });
  return out;
}

// The key that a parse error is about, as "key: 'value' ..." where Boost knows it.
[[noreturn]] void refuse(const std::string& where, const po::error& e) {
  if (const auto* with_name = dynamic_cast<const po::error_with_option_name*>(&e)) {
    std::string key = with_name->get_option_name();
    while (!key.empty() && key[0] == '-') key.erase(0, 1);
    const std::string said = e.what(), want = wanted(key);
    const size_t begin = said.find("('"), end = said.find("')");  // the argument ('abc') for option ...
    if (dynamic_cast<const po::validation_error*>(&e) != nullptr && !want.empty() &&
        begin != std::string::npos && end != std::string::npos)
      fail_usage(
          fmt::format("{}: {}: '{}' is not {}", where, key, said.substr(begin + 2, end - begin - 2), want));
    fail_usage(fmt::format("{}: {}: {}", where, key, said));
  }
  fail_usage(fmt::format("{}: {}", where, e.what()));
}

void refuse_unknown(const std::string& where, const std::string& key) {
  fail_usage(
      fmt::format("{}: unknown key '{}'; the nearest known one is '{}'", where, key, nearest_key(key)));
}

}  // namespace

Config load_config(const std::string& path, const std::vector<std::string>& sets, ConfigUse use) {
  Config config;
  const po::options_description keys = config_description(config);
  po::variables_map map;  // what is stored first wins: --set before the file

  po::parsed_options from_sets(&keys);
  for (const std::string& s : sets) {
    const size_t equals = s.find('=');
    if (equals == std::string::npos || equals == 0) fail_usage(fmt::format("--set {}: want key=value", s));
    po::option o;
    o.string_key = s.substr(0, equals);
    o.value = {s.substr(equals + 1)};
    if (keys.find_nothrow(o.string_key, false) == nullptr) refuse_unknown("--set", o.string_key);
    std::erase_if(from_sets.options, [&](const po::option& other) {
      return other.string_key == o.string_key;
    });  // the last one counts
    from_sets.options.push_back(o);
  }
  try {
    po::store(from_sets, map);
  } catch (const po::error& e) {
    refuse("--set", e);
  }

  std::error_code ignored;
  std::ifstream in(path);
  if (!in || std::filesystem::is_directory(path, ignored))
    fail_usage(fmt::format(
        "--config {}: the file cannot be read: {}", path,
        std::filesystem::exists(path, ignored) ? "it is a folder, or not ours to read" : "no such file"));
  try {
    const po::parsed_options from_file = po::parse_config_file(in, keys, true);
    for (const po::option& o : from_file.options) {
      if (o.unregistered) refuse_unknown(path, o.string_key);
    }
    po::store(from_file, map);
  } catch (const po::error& e) {
    refuse(path, e);
  }
  try {
    po::notify(map);
  } catch (const po::error& e) {
    refuse(path, e);
  }
  const std::vector<std::string> wrong = contradictions(config, use);
  if (!wrong.empty()) fail_usage(fmt::format("{}: {}", path, fmt::join(wrong, "; ")));
  return config;
}

std::string configuration_help() {
  std::string out =
      "Configuration keys (--config FILE as INI, --set key=value over it), with their defaults:\n";
  const Config defaults;
  fields(defaults, [&](const char* key, const auto& value, const char* help) {
    out += fmt::format("  {:<28} {:<8} {}\n", key, fmt::format("{}", value), help);
  });
  return out;
}

Device choose_device_kind(const std::string& text) {
  if (text == "cpu") return Device::cpu;
  if (text == "auto") return cuda_device_count() > 0 ? Device::cuda : Device::cpu;
  if (text != "cuda") fail_usage(fmt::format("--device: '{}' is not one of auto, cpu, cuda", text));
  if (!SLIP_HAVE_CUDA)
    fail_usage("--device cuda: this build has no CUDA back end (built without nvcc or NCCL)");
  if (cuda_device_count() == 0)
    fail_usage(
        "--device cuda: no CUDA device is visible (driver missing, or CUDA_VISIBLE_DEVICES hides them)");
  return Device::cuda;
}

bool bf16_asked(const std::string& precision, Device device) {
  if (precision != "bf16" && precision != "fp32")
    fail_usage(fmt::format("--precision: '{}' is not one of bf16, fp32", precision));
  if (precision == "bf16" && device == Device::cpu)
    fail_usage("--precision bf16: the CPU computes in fp32; use --precision fp32 or --device cuda");
  return precision == "bf16";
}

}  // namespace slip
