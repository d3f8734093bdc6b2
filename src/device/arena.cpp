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
    fail_usage(fmt::format("memory: {} needs {:.1f} MiB more than there is{}; taken so far:\n{}", name,
                           static_cast<double>(bytes) / 0x1p20, *key ? fmt::format(" (make {} smaller)", key) : "",
                           table()));
  }
  return buffers_.back().data();
}

std::string Arena::table() const {
  std::vector<Entry> sorted = entries_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Entry& a, const Entry& b) { return a.bytes > b.bytes; });
  std::string out;
  for (const Entry& e : sorted) out += fmt::format("{:>12.2f} MiB  {}\n", static_cast<double>(e.bytes) / 0x1p20, e.name);
  return out + fmt::format("{:>12.2f} MiB  total", static_cast<double>(total_) / 0x1p20);
}

}  // namespace slip
