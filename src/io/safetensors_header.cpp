#include "io/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_set>

#include "core/check.hpp"
#include "io/json_file.hpp"

namespace slip {
namespace {

using nlohmann::json;

struct DtypeRow {
  const char* text;
  Dtype dtype;
  uint64_t bits;
};
constexpr std::array kDtypes = {DtypeRow{"BOOL", Dtype::boolean, 8},   DtypeRow{"U8", Dtype::u8, 8},
                                DtypeRow{"I8", Dtype::i8, 8},          DtypeRow{"F8_E4M3", Dtype::f8, 8},
                                DtypeRow{"F8_E5M2", Dtype::f8, 8},     DtypeRow{"F8_E8M0", Dtype::f8, 8},
                                DtypeRow{"F8_E4M3FNUZ", Dtype::f8, 8}, DtypeRow{"F8_E5M2FNUZ", Dtype::f8, 8},
                                DtypeRow{"U16", Dtype::u16, 16},       DtypeRow{"I16", Dtype::i16, 16},
                                DtypeRow{"F16", Dtype::f16, 16},       DtypeRow{"BF16", Dtype::bf16, 16},
                                DtypeRow{"U32", Dtype::u32, 32},       DtypeRow{"I32", Dtype::i32, 32},
                                DtypeRow{"F32", Dtype::f32, 32},       DtypeRow{"U64", Dtype::u64, 64},
                                DtypeRow{"I64", Dtype::i64, 64},       DtypeRow{"F64", Dtype::f64, 64},
                                DtypeRow{"C64", Dtype::c64, 64},       DtypeRow{"F4", Dtype::other, 4},
                                DtypeRow{"F6_E2M3", Dtype::other, 6},  DtypeRow{"F6_E3M2", Dtype::other, 6}};

const DtypeRow* find_dtype(const std::string& text) {
  const auto row =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const DtypeRow& d) { return text == d.text; });
  return row == kDtypes.end() ? nullptr : &*row;
}

struct RawTensor {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape, offsets;
};

// Takes the events of the JSON parser one by one: nothing is built that the format does not allow, whatever
// the header's size, and a key that occurs twice is seen.
class HeaderSax : public nlohmann::json_sax<json> {
 public:
  explicit HeaderSax(const std::string& path) : path_(path) {}
  std::vector<RawTensor> tensors;
  std::map<std::string, std::string> metadata;

  bool start_object(size_t) override {
    if (place_ == Place::outside) return go(Place::header);
    if (place_ == Place::header) return go(in_metadata_ ? Place::metadata : Place::tensor);
    unexpected("an object");
  }
  bool end_object() override {
    if (place_ == Place::tensor) check_complete();
    return go(place_ == Place::header ? Place::outside : Place::header);
  }
  bool start_array(size_t) override {
    if (place_ != Place::tensor || key_ == "dtype") unexpected("an array");
    std::optional<std::vector<uint64_t>>& list =
        key_ == "shape" ? tensors.back().shape : tensors.back().offsets;
    list.emplace();
    list_ = &*list;
    return go(Place::list);
  }
  bool end_array() override { return go(Place::tensor); }
  bool key(std::string& name) override {
    if (place_ == Place::header) return top_key(name);
    if (place_ == Place::metadata) {
      if (metadata.count(name) != 0)
        bad(fmt::format("__metadata__: the key {} occurs twice", json(name).dump()));
    } else {
      const RawTensor& t = tensors.back();
      const bool known = name == "dtype" || name == "shape" || name == "data_offsets";
      if (!known) bad(fmt::format("tensor {}: unknown key {}", t.name, json(name).dump()));
      if (name == "dtype"   ? t.dtype.has_value()
          : name == "shape" ? t.shape.has_value()
                            : t.offsets.has_value()) {
        bad(fmt::format("tensor {}: {} occurs twice", t.name, name));
      }
    }
    key_ = name;
    return true;
  }
  bool string(std::string& value) override {
    if (place_ == Place::metadata) {
      metadata.emplace(key_, value);
      return true;
    }
    if (place_ != Place::tensor || key_ != "dtype") unexpected(json(value).dump());
    if (find_dtype(value) == nullptr) {
      bad(fmt::format("tensor {}: dtype {} is unknown", tensors.back().name, json(value).dump()));
    }
    tensors.back().dtype = value;
    return true;
  }
  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::list) unexpected(std::to_string(value));
    if (list_->size() >= kMaxRank)
      bad(fmt::format("tensor {}: {} has more than {} numbers", tensors.back().name, key_, kMaxRank));
    list_->push_back(value);
    return true;
  }
  bool number_integer(int64_t value) override { unexpected(std::to_string(value)); }
  bool number_float(double, const std::string& text) override { unexpected(text); }
  bool null() override { unexpected("null"); }
  bool boolean(bool value) override { unexpected(value ? "true" : "false"); }
  bool binary(json::binary_t&) override { unexpected("binary data"); }
  bool parse_error(size_t, const std::string&, const json::exception& e) override {
    bad("header is not JSON: " + json_complaint(e));
  }

 private:
  enum class Place { outside, header, metadata, tensor, list };

  bool go(Place place) {
    place_ = place;
    return true;
  }
  bool top_key(const std::string& name) {
    in_metadata_ = name == "__metadata__";
    key_ = name;
    if (name.size() > kMaxTensorName) {
      bad(fmt::format("a tensor name has {} bytes, at most {} are read: {}...", name.size(), kMaxTensorName,
                      name.substr(0, 60)));
    }
    if (!names_.insert(name).second)
      bad(fmt::format("{} occurs twice in the header", in_metadata_ ? name : "tensor " + name));
    if (in_metadata_) return true;
    if (tensors.size() >= kMaxTensors) bad(fmt::format("more than {} tensors", kMaxTensors));
    tensors.push_back({name, {}, {}, {}});
    return true;
  }
  void check_complete() const {
    const RawTensor& t = tensors.back();
    if (!t.dtype) bad(fmt::format("tensor {}: no dtype", t.name));
    if (!t.shape) bad(fmt::format("tensor {}: no shape", t.name));
    if (!t.offsets) bad(fmt::format("tensor {}: no data_offsets", t.name));
    if (t.offsets->size() != 2)
      bad(fmt::format("tensor {}: data_offsets has {} numbers, 2 are expected", t.name, t.offsets->size()));
  }
  [[noreturn]] void bad(const std::string& what) const { fail_input(fmt::format("{}: {}", path_, what)); }
  [[noreturn]] void unexpected(const std::string& found) const {
    switch (place_) {
      case Place::outside:
        bad("the header is a JSON object, found " + found);
      case Place::header:
        bad(fmt::format("{} is an object, found {}", key_, found));
      case Place::metadata:
        bad(fmt::format("__metadata__: the value of {} is a string, found {}", json(key_).dump(), found));
      case Place::tensor:
        bad(fmt::format("tensor {}: {} cannot be {}", tensors.back().name, key_, found));
      case Place::list:
        break;
    }
    bad(fmt::format("tensor {}: {} holds whole numbers from 0, found {}", tensors.back().name, key_, found));
  }

  const std::string& path_;
  Place place_ = Place::outside;
  bool in_metadata_ = false;
  std::string key_;
  std::vector<uint64_t>* list_ = nullptr;
  std::unordered_set<std::string> names_;
};

std::string list_text(const std::vector<uint64_t>& v) { return fmt::format("[{}]", fmt::join(v, ", ")); }

// Bytes that dtype and shape ask for.
uint64_t declared_bytes(const std::string& path, const RawTensor& t) {
  uint64_t bits = find_dtype(*t.dtype)->bits, count = 1;
  bool overflow = false;
  for (const uint64_t d : *t.shape) {
    overflow = overflow || d > uint64_t{INT64_MAX} || __builtin_mul_overflow(count, d, &count);
  }
  if (overflow || __builtin_mul_overflow(bits, count, &bits)) {
    fail_input(
        fmt::format("{}: tensor {}: {} {} overflows 64 bits", path, t.name, *t.dtype, list_text(*t.shape)));
  }
  if (bits % 8 != 0) {
    fail_input(fmt::format("{}: tensor {}: {} {} is {} bits, not whole bytes", path, t.name, *t.dtype,
                           list_text(*t.shape), bits));
  }
  return bits / 8;
}

}  // namespace

const char* dtype_name(Dtype dtype) {
  if (dtype == Dtype::f8) return "F8";
  if (dtype == Dtype::other) return "sub-byte";
  return std::find_if(kDtypes.begin(), kDtypes.end(), [&](const DtypeRow& d) { return d.dtype == dtype; })
      ->text;
}

int64_t dtype_bytes(Dtype dtype) {
  const auto row =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const DtypeRow& d) { return d.dtype == dtype; });
  return static_cast<int64_t>(row->bits / 8);
}

SafetensorsHeader parse_safetensors_header(const std::string& path, const std::string& text,
                                           int64_t file_bytes) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || text[first] != '{') {
    fail_input(fmt::format("{}: the header is not JSON: it does not begin with {{", path));
  }
  // The parser takes a byte 0 for the end of its input.
  if (text.find('\0') != std::string::npos)
    fail_input(fmt::format("{}: the header is not JSON: it holds a byte 0", path));
  HeaderSax sax(path);
  json::sax_parse(text, &sax);

  std::sort(sax.tensors.begin(), sax.tensors.end(), [](const RawTensor& a, const RawTensor& b) {
    return std::tie((*a.offsets)[0], (*a.offsets)[1], a.name) <
           std::tie((*b.offsets)[0], (*b.offsets)[1], b.name);
  });
  SafetensorsHeader header;
  header.metadata = std::move(sax.metadata);
  const int64_t data = 8 + static_cast<int64_t>(text.size());
  uint64_t end = 0;
  for (RawTensor& t : sax.tensors) {
    const uint64_t from = (*t.offsets)[0], to = (*t.offsets)[1];
    if (to < from) {
      fail_input(fmt::format("{}: tensor {}: data_offsets {} end before they begin", path, t.name,
                             list_text(*t.offsets)));
    }
    if (from != end) {
      fail_input(
          fmt::format("{}: tensor {}: data_offsets {} begin at {}, {} is expected (no holes, no overlap)",
                      path, t.name, list_text(*t.offsets), from, end));
    }
    const uint64_t bytes = declared_bytes(path, t);
    if (to - from != bytes) {
      fail_input(fmt::format("{}: tensor {}: {} {} needs {} bytes, data_offsets {} give {}", path, t.name,
                             *t.dtype, list_text(*t.shape), bytes, list_text(*t.offsets), to - from));
    }
    if (to > uint64_t{INT64_MAX} - static_cast<uint64_t>(data)) {
      fail_input(fmt::format("{}: tensor {}: data_offsets {} overflow", path, t.name, list_text(*t.offsets)));
    }
    end = to;
    header.tensors.push_back({.name = std::move(t.name),
                              .dtype = find_dtype(*t.dtype)->dtype,
                              .dtype_text = *t.dtype,
                              .shape = {t.shape->begin(), t.shape->end()},
                              .offset = data + static_cast<int64_t>(from),
                              .bytes = static_cast<int64_t>(bytes),
                              .file = path});
  }
  const int64_t declared = data + static_cast<int64_t>(end);
  if (declared != file_bytes) {
    fail_input(
        fmt::format("{}: the header declares an end at byte {}, the file has {} bytes (difference {}): it {}",
                    path, declared, file_bytes, std::abs(declared - file_bytes),
                    file_bytes < declared ? "was cut short" : "has trailing bytes"));
  }
  return header;
}

}  // namespace slip
