#include "apps/inspect_statistics.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "apps/inspect_text.hpp"

namespace slip {
namespace {

constexpr int64_t kPiece = 1 << 18;  // elements at a time

// Mean and squared deviations of the finite values, merged piece by piece (Chan et al.): exact to rounding in
// any size.
struct Moments {
  int64_t finite = 0, nan = 0, inf = 0;
  double mean = 0, squares = 0;
  double min = std::numeric_limits<double>::infinity(), max = -std::numeric_limits<double>::infinity();

  void add(const std::vector<double>& x) {
    int64_t n = 0;
    double sum = 0;
    for (const double v : x) {
      if (!std::isfinite(v)) {
        (std::isnan(v) ? nan : inf) += 1;
        continue;
      }
      ++n;
      sum += v;
      min = std::min(min, v);
      max = std::max(max, v);
    }
    if (n == 0) return;
    const double here = sum / static_cast<double>(n);
    double around = 0;
    for (const double v : x) around += std::isfinite(v) ? (v - here) * (v - here) : 0;
    const double total = static_cast<double>(finite + n), step = here - mean;
    squares += around + step * step * static_cast<double>(finite) * static_cast<double>(n) / total;
    mean += step * static_cast<double>(n) / total;
    finite += n;
  }
};

template <class T> void read_as(const SafetensorsFile& f, const TensorInfo& piece, std::vector<double>& out) {
  std::vector<T> values(out.size());
  if constexpr (std::is_same_v<T, float>) {
    f.read_float(piece, values.data());
  } else {
    f.read(piece, values.data());
  }
  std::transform(values.begin(), values.end(), out.begin(), [](T v) { return static_cast<double>(v); });
}

// Values as double (64-bit integers are rounded); false for a dtype that is not read as numbers.
bool read_values(const SafetensorsFile& f, const TensorInfo& piece, std::vector<double>& out) {
  out.resize(static_cast<size_t>(piece.count()));
  switch (piece.dtype) {
    case Dtype::f32:
    case Dtype::bf16:
    case Dtype::f16:
      return read_as<float>(f, piece, out), true;
    case Dtype::f64:
      return read_as<double>(f, piece, out), true;
    case Dtype::boolean:
    case Dtype::u8:
      return read_as<uint8_t>(f, piece, out), true;
    case Dtype::i8:
      return read_as<int8_t>(f, piece, out), true;
    case Dtype::u16:
      return read_as<uint16_t>(f, piece, out), true;
    case Dtype::i16:
      return read_as<int16_t>(f, piece, out), true;
    case Dtype::u32:
      return read_as<uint32_t>(f, piece, out), true;
    case Dtype::i32:
      return read_as<int32_t>(f, piece, out), true;
    case Dtype::u64:
      return read_as<uint64_t>(f, piece, out), true;
    case Dtype::i64:
      return read_as<int64_t>(f, piece, out), true;
    default:
      return false;
  }
}

}  // namespace

Facts tensor_statistics(const SafetensorsFile& f, const TensorInfo& t, Progress& progress) {
  Moments m;
  std::vector<double> values;
  const int64_t count = t.count(), size = dtype_bytes(t.dtype);
  for (int64_t first = 0; first < count; first += kPiece) {
    TensorInfo piece = t;  // a part of the tensor, as a tensor of its own
    piece.shape = {std::min(kPiece, count - first)};
    piece.offset += first * size;
    piece.bytes = piece.shape[0] * size;
    if (!read_values(f, piece, values)) return nullptr;
    m.add(values);
    progress.add(static_cast<double>(piece.bytes));
  }
  Facts out = Facts::object();
  const auto put = [&](const char* key, double value) { out[key] = m.finite > 0 ? Facts(value) : Facts(); };
  put("mean", m.mean);
  put("deviation", m.finite > 0 ? std::sqrt(m.squares / static_cast<double>(m.finite)) : 0);
  put("min", m.min);
  put("max", m.max);
  out["nan"] = m.nan;
  out["inf"] = m.inf;
  return out;
}

}  // namespace slip
