// safetensors files: a reader that believes nothing it has not checked (target-models.md 9.2, 9.3 as facts of
// the format), a folder reader (single file or sharded index), and a writer. Reading is pread into caller's
// memory.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/bf16.hpp"

namespace slip {

enum class Dtype { boolean, u8, i8, f8, u16, i16, f16, bf16, u32, i32, f32, u64, i64, f64, c64, other };
const char* dtype_name(Dtype);
int64_t dtype_bytes(Dtype);  // 0 for `other` (sub-byte types)

struct TensorInfo {
  std::string name;
  Dtype dtype;
  std::string dtype_text;  // as the file spells it
  std::vector<int64_t> shape;
  int64_t offset, bytes;  // in the file
  std::string file;       // path
  int64_t count() const;  // elements
};
std::string shape_text(const std::vector<int64_t>&);  // "[3, 4]"

void require_float(const TensorInfo&);  // fail_input unless F32, BF16, F16 or F64

// One file. The constructor validates the whole header; every failure is fail_input naming file, tensor,
// declared and found.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  const std::vector<TensorInfo>& tensors() const;              // in file order
  const std::map<std::string, std::string>& metadata() const;  // __metadata__
  const TensorInfo* find(const std::string& name) const;       // null when absent
  void read(const TensorInfo&, void* bytes) const;             // raw bytes as stored
  // `bytes` of them from byte `offset` on. Safe from several threads; call check_size when all are read.
  void read_bytes(const TensorInfo&, int64_t offset, int64_t bytes, void* out) const;
  void check_size() const;                               // the file is as long as it was when opened
  void read_float(const TensorInfo&, float* out) const;  // from F32, BF16, F16, F64
  void read_bf16(const TensorInfo&,
                 Bf16* out) const;  // exact for BF16; rounds the others (F64 by way of float)
  const std::string& path() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A Hugging Face folder: model.safetensors, or model.safetensors.index.json and its shards, all headers
// checked.
class WeightFolder {
 public:
  explicit WeightFolder(const std::string& folder);
  const TensorInfo* find(const std::string& name) const;
  std::vector<std::string> names() const;
  // `need` fails (exit 3) when the tensor is absent (up to 20 available names shown), has another shape or is
  // none of F32, BF16, F16, F64.
  const TensorInfo& need(const std::string& name, const std::vector<int64_t>& shape) const;
  void read_float(const TensorInfo&, float* out) const;
  void read_bf16(const TensorInfo&, Bf16* out) const;
  void read_bytes(const TensorInfo&, int64_t offset, int64_t bytes, void* out) const;  // as stored
  void check_sizes() const;
  const std::string& folder() const { return folder_; }

 private:
  const SafetensorsFile& file_of(const TensorInfo&) const;

  std::string folder_;
  std::vector<std::shared_ptr<SafetensorsFile>> files_;
  std::map<std::string, std::pair<int, const TensorInfo*>> where_;
};

// Writer: header padded to 8, tensors by descending alignment then name, __metadata__ {"format":"pt"} plus
// `metadata`. Writes to `path` itself (callers name a temporary file and rename), fsyncs it, returns its
// size. `wrote` hears how many bytes more are written.
struct TensorToWrite {
  std::string name;
  Dtype dtype;  // f32, bf16, i32, u8, ...
  std::vector<int64_t> shape;
  const void* data;  // host memory
};
int64_t write_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                          const std::map<std::string, std::string>& metadata = {},
                          const std::function<void(int64_t)>& wrote = {});

}  // namespace slip
