// TensorBoard's event files: scalars by name and step. A file is a row of records, each
//   uint64 length, uint32 masked CRC32C of those 8 bytes, `length` bytes, uint32 masked CRC32C of them,
// little-endian (TFRecord); the bytes are an `Event` of TensorFlow's event.proto, of which the few fields
// that scalars need are written here: wall_time (1, double), step (2, varint), file_version (3), summary (5)
// with value (1) {tag (1), simple_value (2, float)}, and session_log (7) {status (1): START}. Mask: rotate
// right by 15, add 0xa282ead8.
#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace slip {

using Scalars = std::vector<std::pair<std::string, double>>;  // tag, value

uint32_t masked_crc32c(std::string_view bytes);
std::string event_record(std::string_view event);  // framed
// Events as bytes; wall_s: seconds since 1970.
std::string version_event(double wall_s);
std::string start_event(double wall_s, int64_t step);
std::string scalar_event(double wall_s, int64_t step, const Scalars&);

// One file of a process: <directory>/events.out.tfevents.<seconds>.<microseconds>.<host>. TensorBoard reads
// all files of a directory in the order of their names, and drops what earlier ones say of `first_step` and
// later steps: those are made again.
class EventFile {
 public:
  EventFile(const std::string& directory, int64_t first_step);
  // At the end of the file when it returns. A record that a kill cuts is ignored by readers.
  void add(int64_t step, const Scalars&);

 private:
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  void append(std::string_view event);

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace slip
