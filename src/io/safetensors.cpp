#include "io/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "core/check.hpp"
#include "io/file.hpp"
#include "io/safetensors_header.hpp"

namespace slip {

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian; no other order is supported");

namespace {

constexpr int64_t kPiece = 4 << 20;  // bytes converted at a time

float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16, exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t e = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | (e << 23) | (mantissa << 13));
}

template <class T> T load(const char* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

float value_at(Dtype dtype, const char* p) {
  switch (dtype) {
    case Dtype::f32:
      return load<float>(p);
    case Dtype::bf16:
      return to_float(load<Bf16>(p));
    case Dtype::f16:
      return half_to_float(load<uint16_t>(p));
    default:
      return static_cast<float>(load<double>(p));
  }
}

bool is_float(Dtype d) { return d == Dtype::f32 || d == Dtype::bf16 || d == Dtype::f16 || d == Dtype::f64; }

std::string read_header_text(const InputFile& file) {
  if (file.size() < 8) {
    fail_input(fmt::format("{}: {} bytes; a safetensors file has at least 8", file.path(), file.size()));
  }
  uint64_t n = 0;
  file.read(0, 8, &n);
  if (n > static_cast<uint64_t>(kMaxHeaderBytes)) {
    fail_input(fmt::format("{}: declares a header of {} bytes, at most {} are read", file.path(), n,
                           kMaxHeaderBytes));
  }
  const int64_t bytes = static_cast<int64_t>(n);
  if (8 + bytes > file.size()) {
    fail_input(
        fmt::format("{}: declares a header that ends at byte {}, the file has {} bytes (difference {})",
                    file.path(), 8 + bytes, file.size(), 8 + bytes - file.size()));
  }
  std::string text(static_cast<size_t>(bytes), '\0');
  file.read(8, bytes, text.data());
  return text;
}

}  // namespace

int64_t TensorInfo::count() const {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;  // the header's check says that it fits
  return n;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

struct SafetensorsFile::Impl {
  explicit Impl(const std::string& path) : file(path) {
    SafetensorsHeader header = parse_safetensors_header(path, read_header_text(file), file.size());
    tensors = std::move(header.tensors);
    metadata = std::move(header.metadata);
    for (size_t i = 0; i < tensors.size(); ++i) index.emplace(tensors[i].name, i);
  }
  InputFile file;
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  std::unordered_map<std::string, size_t> index;
};

SafetensorsFile::SafetensorsFile(const std::string& path) : impl_(std::make_unique<Impl>(path)) {}
SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
const std::vector<TensorInfo>& SafetensorsFile::tensors() const { return impl_->tensors; }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return impl_->metadata; }
const std::string& SafetensorsFile::path() const { return impl_->file.path(); }

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto at = impl_->index.find(name);
  return at == impl_->index.end() ? nullptr : &impl_->tensors[at->second];
}

void SafetensorsFile::read(const TensorInfo& t, void* bytes) const {
  impl_->file.read(t.offset, t.bytes, bytes);
  impl_->file.check_size();
}

void SafetensorsFile::read_bytes(const TensorInfo& t, int64_t offset, int64_t bytes, void* out) const {
  require(offset >= 0 && bytes >= 0 && offset + bytes <= t.bytes,
          "SafetensorsFile: bytes outside the tensor");
  impl_->file.read(t.offset + offset, bytes, out);
}
void SafetensorsFile::check_size() const { impl_->file.check_size(); }

void SafetensorsFile::read_float(const TensorInfo& t, float* out) const {
  require_float(t);
  if (t.dtype == Dtype::f32) return read(t, out);
  const int64_t size = dtype_bytes(t.dtype), count = t.count(), step = kPiece / size;
  std::vector<char> piece(static_cast<size_t>(std::min(count, step) * size));
  for (int64_t first = 0; first < count; first += step) {
    const int64_t n = std::min(step, count - first);
    impl_->file.read(t.offset + first * size, n * size, piece.data());
    for (int64_t i = 0; i < n; ++i) out[first + i] = value_at(t.dtype, piece.data() + i * size);
  }
  impl_->file.check_size();
}

void SafetensorsFile::read_bf16(const TensorInfo& t, Bf16* out) const {
  require_float(t);
  if (t.dtype == Dtype::bf16) return read(t, out);
  const int64_t size = dtype_bytes(t.dtype), count = t.count(), step = kPiece / size;
  std::vector<char> piece(static_cast<size_t>(std::min(count, step) * size));
  for (int64_t first = 0; first < count; first += step) {
    const int64_t n = std::min(step, count - first);
    impl_->file.read(t.offset + first * size, n * size, piece.data());
    for (int64_t i = 0; i < n; ++i) out[first + i] = to_bf16(value_at(t.dtype, piece.data() + i * size));
  }
  impl_->file.check_size();
}

void require_float(const TensorInfo& t) {
  if (!is_float(t.dtype)) {
    fail_input(fmt::format("{}: tensor {}: dtype is {}; read as numbers: F32, BF16, F16, F64", t.file, t.name,
                           t.dtype_text));
  }
}

}  // namespace slip
