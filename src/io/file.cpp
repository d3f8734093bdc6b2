#include "io/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/check.hpp"

namespace slip {
namespace {

int64_t size_of(int fd, const std::string& path) {
  struct stat s {};
  if (fstat(fd, &s) != 0) fail_input(fmt::format("{}: {}", path, std::strerror(errno)));
  if (!S_ISREG(s.st_mode)) {
    fail_input(fmt::format("{}: a file is expected, found {}", path,
                           S_ISDIR(s.st_mode) ? "a folder" : "a device or pipe"));
  }
  return s.st_size;
}

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path) {
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // O_NONBLOCK: a pipe must not make us wait
  if (fd_ < 0) fail_input(fmt::format("{}: {}", path, std::strerror(errno)));
  try {
    size_ = size_of(fd_, path);
  } catch (...) {
    close(fd_);
    throw;
  }
}

InputFile::~InputFile() { close(fd_); }

void InputFile::read(int64_t offset, int64_t bytes, void* out) const {
  char* to = static_cast<char*>(out);
  for (int64_t done = 0; done < bytes;) {
    const size_t piece = static_cast<size_t>(std::min<int64_t>(bytes - done, int64_t{1} << 30));
    const ssize_t n = pread(fd_, to + done, piece, offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      fail_input(fmt::format("{}: reading {} bytes at {}: {}", path_, bytes, offset, std::strerror(errno)));
    if (n == 0) {
      fail_input(fmt::format(
          "{}: the file ends at byte {} while bytes up to {} are read; it had {} bytes when opened", path_,
          std::min(offset + done, size_of(fd_, path_)), offset + bytes, size_));
    }
    done += n;
  }
}

void InputFile::check_size() const {
  const int64_t now = size_of(fd_, path_);
  if (now != size_) {
    fail_input(fmt::format("{}: changed while it was read: {} bytes when opened, {} now", path_, size_, now));
  }
}

std::string read_text(const std::string& path, int64_t limit) {
  const InputFile file(path);
  if (file.size() > limit)
    fail_input(fmt::format("{}: {} bytes, at most {} are read", path, file.size(), limit));
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, file.size(), text.data());
  file.check_size();
  return text;
}

}  // namespace slip
