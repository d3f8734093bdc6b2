#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "core/check.hpp"
#include "core/log.hpp"
#include "io/durable.hpp"
#include "io/json_file.hpp"
#include "io/safetensors.hpp"

namespace slip {
namespace {

// A file being written; closes itself when a write fails.
struct OutputFile {
  OutputFile(const std::string& path, int64_t bytes) : path(path), bytes(bytes) {
    fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) fail(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  }
  ~OutputFile() {
    if (fd >= 0 && ::close(fd) != 0) log_error(fmt::format("{}: would not close", path));
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, int64_t count) {
    const char* from = static_cast<const char*>(data);
    while (count > 0) {
      const ssize_t n = ::write(fd, from, static_cast<size_t>(std::min<int64_t>(count, int64_t{1} << 30)));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        const char* why = std::strerror(errno);
        fail(fmt::format("{}: writing {} bytes: {}; {} bytes are free", path, bytes, why, free_bytes(path)));
      }
      from += n;
      count -= n;
    }
  }
  void finish() {
    if (fsync(fd) != 0) fail(fmt::format("{}: fsync: {}", path, std::strerror(errno)));
    if (::close(std::exchange(fd, -1)) != 0) fail(fmt::format("{}: close: {}", path, std::strerror(errno)));
  }

  std::string path;
  int64_t bytes;  // all of it, for messages
  int fd = -1;
};

int64_t bytes_of(const TensorToWrite& t) {
  int64_t n = dtype_bytes(t.dtype);
  for (const int64_t d : t.shape) n *= d;
  return n;
}

void check_tensors(const std::vector<TensorToWrite>& tensors) {
  std::set<std::string> names;
  for (const TensorToWrite& t : tensors) {
    require(t.name != "__metadata__" && !t.name.empty(),
            "write_safetensors: a tensor needs a name of its own");
    require(names.insert(t.name).second, "write_safetensors: two tensors have one name");
    require(t.dtype != Dtype::f8 && t.dtype != Dtype::other,
            "write_safetensors: this dtype has no single spelling");
    require(t.data != nullptr || bytes_of(t) == 0, "write_safetensors: a tensor without data");
    require(std::all_of(t.shape.begin(), t.shape.end(), [](int64_t d) { return d >= 0; }),
            "write_safetensors: a negative dimension");
  }
}

}  // namespace

int64_t write_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                          const std::map<std::string, std::string>& metadata,
                          const std::function<void(int64_t)>& wrote) {
  check_tensors(tensors);
  std::sort(tensors.begin(), tensors.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    const int64_t wa = dtype_bytes(a.dtype), wb = dtype_bytes(b.dtype);
    return wa != wb ? wa > wb : a.name < b.name;  // so every tensor is aligned to its elements
  });
  nlohmann::ordered_json header;
  header["__metadata__"]["format"] = "pt";
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  int64_t data = 0;
  for (const TensorToWrite& t : tensors) {
    const int64_t end = data + bytes_of(t);
    header[t.name] = {{"dtype", dtype_name(t.dtype)}, {"shape", t.shape}, {"data_offsets", {data, end}}};
    data = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');

  const uint64_t n = text.size();
  const int64_t total = 8 + static_cast<int64_t>(n) + data;
  OutputFile file(path, total);
  file.write(&n, 8);
  file.write(text.data(), static_cast<int64_t>(n));
  for (const TensorToWrite& t : tensors) {
    file.write(t.data, bytes_of(t));
    if (wrote) wrote(bytes_of(t));
  }
  file.finish();
  return total;
}

}  // namespace slip
