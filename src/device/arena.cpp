#include "device/arena.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace slip {

void* Arena::take_bytes(const std::string& name, int64_t bytes, const char* key) {
  require(bytes >= 0, "Arena::take: negative size");
  entries_.push_back({name, bytes});
  total_ += bytes;
  if (mode_ == Mode::measure) {
    static char nowhere[64];  // not null: views are cut from it, nobody looks inside
    return nowhere;
  }
  if (bytes == 0) return nullptr;
  try {
    buffers_.emplace_back(device_ == Device::cpu ? Place::host : Place::device, bytes);
  } catch (const Error& e) {
    throw Error(fmt::format("memory: {} needs {:.1f} MiB more than there is{}; taken so far:\n{}", name,
                            static_cast<double>(bytes) / 0x1p20,
                            *key ? fmt::format(" (make {} smaller)", key) : "", table()),
                kUsage, Where::current());  // with lines of its own: the table
  }
  return buffers_.back().data();
}

std::string Arena::table(int64_t most) const {
  std::vector<Entry> sorted = entries_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Entry& a, const Entry& b) { return a.bytes > b.bytes; });
  const auto line = [](int64_t bytes, const std::string& name) {
    return fmt::format("{:>12.2f} MiB  {}\n", static_cast<double>(bytes) / 0x1p20, name);
  };
  std::string out;
  int64_t rest = 0, rest_names = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (most == 0 || static_cast<int64_t>(i) < most) {
      out += line(sorted[i].bytes, sorted[i].name);
    } else {
      rest += sorted[i].bytes;
      ++rest_names;
    }
  }
  if (rest_names > 0) out += line(rest, fmt::format("{} smaller ones", rest_names));
  out += line(total_, "total");
  out.pop_back();
  return out;
}

}  // namespace slip
