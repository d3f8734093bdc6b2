// A regular file open for reading, and its size at that moment.
#pragma once
#include <cstdint>
#include <string>

namespace slip {

class InputFile {
 public:
  explicit InputFile(const std::string& path);  // fail_input: missing, not a regular file, unreadable
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  // Exactly `bytes` bytes from `offset`, or fail_input. Safe from several threads.
  void read(int64_t offset, int64_t bytes, void* out) const;
  // The size now is that at opening: a shared file system may serve a file that is still being written.
  void check_size() const;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// The whole of a text file of at most `limit` bytes.
std::string read_text(const std::string& path, int64_t limit);

}  // namespace slip
