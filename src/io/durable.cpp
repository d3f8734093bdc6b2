#include "io/durable.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "core/check.hpp"
#include "io/file.hpp"

namespace slip {
namespace {

[[noreturn]] void fail_errno(const std::string& what) {
  fail(fmt::format("{}: {}", what, std::strerror(errno)));
}

}  // namespace

void sync_folder(const std::string& folder) {
  const int fd = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY);
  if (fd < 0) fail_errno(folder);
  const int rc = fsync(fd);
  close(fd);
  if (rc != 0 && errno != EINVAL) fail_errno(folder);  // some file systems have no folder sync
}

void rename_durably(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_errno(fmt::format("cannot rename {} to {}", from, to));
  sync_folder(std::filesystem::path(to).parent_path().string());
}

void write_text_durably(const std::string& path, const std::string& text) {
  const std::string partial = path + ".partial";
  const int fd = open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) fail_errno(fmt::format("cannot write {}", partial));
  size_t done = 0;
  bool ok = true;
  while (ok && done < text.size()) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    ok = n > 0;
    if (ok) done += static_cast<size_t>(n);
  }
  ok = ok && fsync(fd) == 0;
  const int error = errno;
  close(fd);
  errno = error;
  if (!ok)
    fail_errno(
        fmt::format("cannot write {}: {} bytes, {} are free", partial, text.size(), free_bytes(partial)));
  rename_durably(partial, path);
}

int64_t free_bytes(const std::string& path) {
  struct statvfs s {};
  if (statvfs(path.c_str(), &s) != 0) return -1;
  return static_cast<int64_t>(s.f_bavail) * static_cast<int64_t>(s.f_frsize);
}

uint64_t file_xxh3(const std::string& path, const std::function<void(int64_t)>& read) {
  const InputFile file(path);
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  std::vector<char> piece(size_t{4} << 20);
  for (int64_t at = 0; at < file.size();) {
    const int64_t n = std::min<int64_t>(static_cast<int64_t>(piece.size()), file.size() - at);
    file.read(at, n, piece.data());
    XXH3_64bits_update(&state, piece.data(), static_cast<size_t>(n));
    at += n;
    if (read) read(n);
  }
  return XXH3_64bits_digest(&state);
}

}  // namespace slip
