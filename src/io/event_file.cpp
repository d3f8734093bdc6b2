#include "io/event_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <bit>
#include <boost/crc.hpp>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>

#include "core/check.hpp"

namespace slip {
namespace {

using Crc32c = boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true>;

template <class T> std::string little_endian(T value) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// Protocol buffers, wire types 0 (varint), 1 (eight bytes), 2 (bytes), 5 (four bytes).
std::string varint(uint64_t v) {
  std::string out;
  for (; v >= 0x80; v >>= 7) out += static_cast<char>(v | 0x80);
  return out += static_cast<char>(v);
}
std::string key(int field, int wire_type) { return varint(static_cast<uint64_t>(field << 3 | wire_type)); }
std::string number_field(int field, int64_t v) { return key(field, 0) + varint(static_cast<uint64_t>(v)); }
std::string double_field(int field, double v) { return key(field, 1) + little_endian(v); }
std::string float_field(int field, float v) { return key(field, 5) + little_endian(v); }
std::string bytes_field(int field, std::string_view bytes) {
  return (key(field, 2) + varint(bytes.size())).append(bytes);
}

double wall_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  Crc32c crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return std::rotr(static_cast<uint32_t>(crc.checksum()), 15) + 0xa282ead8u;
}

std::string event_record(std::string_view event) {
  const std::string length = little_endian(static_cast<uint64_t>(event.size()));
  return length + little_endian(masked_crc32c(length)) + std::string(event) +
         little_endian(masked_crc32c(event));
}

std::string version_event(double wall_s) { return double_field(1, wall_s) + bytes_field(3, "brain.Event:2"); }

std::string start_event(double wall_s, int64_t step) {
  constexpr int64_t kStart = 1;
  return double_field(1, wall_s) + number_field(2, step) + bytes_field(7, number_field(1, kStart));
}

std::string scalar_event(double wall_s, int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars)
    summary += bytes_field(1, bytes_field(1, tag) + float_field(2, static_cast<float>(value)));
  return double_field(1, wall_s) + number_field(2, step) + bytes_field(5, summary);
}

EventFile::EventFile(const std::string& directory, int64_t first_step) {
  char host[HOST_NAME_MAX + 1] = "localhost";
  gethostname(host, sizeof host - 1);
  const double now = wall_now();
  const int64_t micros = static_cast<int64_t>(now * 1e6);
  path_ = fmt::format("{}/events.out.tfevents.{:010}.{:06}.{}", directory, micros / 1'000'000,
                      micros % 1'000'000, host);
  file_.reset(std::fopen(path_.c_str(), "wbe"));
  if (!file_) fail(fmt::format("{}: {}", path_, std::strerror(errno)));
  append(version_event(now));
  append(start_event(now, first_step));
}

void EventFile::append(std::string_view event) {
  const std::string record = event_record(event);
  if (std::fwrite(record.data(), 1, record.size(), file_.get()) != record.size() ||
      std::fflush(file_.get()) != 0)
    fail(fmt::format("{}: {}", path_, std::strerror(errno)));
}

void EventFile::add(int64_t step, const Scalars& scalars) { append(scalar_event(wall_now(), step, scalars)); }

}  // namespace slip
