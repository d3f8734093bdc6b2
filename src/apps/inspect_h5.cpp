#include "apps/inspect_h5.hpp"

#include <fmt/format.h>

namespace slip {
namespace {

constexpr int64_t kMaxBytes = 256 << 20;  // of a dataset that is read whole

[[noreturn]] void bad(const std::string& path, const std::string& what) {
  fail_input(fmt::format("{}: {}", path, what));
}

std::string to_text(std::string raw) {
  raw.resize(std::min(raw.size(), raw.find('\0')));  // padded with NUL
  return raw;
}

Facts attribute_value(const std::string& path, const std::string& name, const H5Id& attribute) {
  const H5Id type(H5Aget_type(attribute.get()), H5Tclose), space(H5Aget_space(attribute.get()), H5Sclose);
  const H5T_class_t kind = H5Tget_class(type.get());
  if (H5Sget_simple_extent_npoints(space.get()) != 1) return "(several values)";
  if (kind == H5T_INTEGER) {
    int64_t value = 0;
    if (H5Aread(attribute.get(), H5T_NATIVE_INT64, &value) < 0)
      bad(path, fmt::format("attribute {}: {}", name, h5_error()));
    return value;
  }
  if (kind == H5T_FLOAT) {
    double value = 0;
    if (H5Aread(attribute.get(), H5T_NATIVE_DOUBLE, &value) < 0)
      bad(path, fmt::format("attribute {}: {}", name, h5_error()));
    return value;
  }
  if (kind != H5T_STRING) return "(another type)";
  if (H5Tis_variable_str(type.get()) > 0) {
    char* value = nullptr;
    if (H5Aread(attribute.get(), type.get(), &value) < 0)
      bad(path, fmt::format("attribute {}: {}", name, h5_error()));
    const std::string text = value == nullptr ? "" : value;
    H5free_memory(value);
    return text;
  }
  std::string text(H5Tget_size(type.get()), '\0');
  if (H5Aread(attribute.get(), type.get(), text.data()) < 0)
    bad(path, fmt::format("attribute {}: {}", name, h5_error()));
  return to_text(std::move(text));
}

struct Dataset {
  H5Id id, type;
  int64_t count;
};

Dataset open(const std::string& path, const H5Id& file, const char* name, H5T_class_t kind) {
  H5Id id(H5Dopen2(file.get(), name, H5P_DEFAULT), H5Dclose);
  if (!id) bad(path, fmt::format("dataset {}: {}", name, h5_error()));
  H5Id type(H5Dget_type(id.get()), H5Tclose);
  const H5Id space(H5Dget_space(id.get()), H5Sclose);
  const int64_t count = H5Sget_simple_extent_npoints(space.get());
  if (H5Tget_class(type.get()) != kind || H5Tis_variable_str(type.get()) > 0)
    bad(path, fmt::format("dataset {}: another type", name));
  if (H5Sget_simple_extent_ndims(space.get()) != 1)
    bad(path, fmt::format("dataset {}: one dimension is expected", name));
  if (count > kMaxBytes / static_cast<int64_t>(H5Tget_size(type.get()))) {
    bad(path, fmt::format("dataset {}: {} values are more than is read at once", name, count));
  }
  return {std::move(id), std::move(type), count};
}

void read(const std::string& path, const Dataset& d, const char* name, hid_t type, void* out) {
  if (d.count > 0 && H5Dread(d.id.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, out) < 0) {
    bad(path, fmt::format("dataset {}: {}", name, h5_error()));
  }
}

}  // namespace

Facts h5_attributes(const std::string& path, const H5Id& object) {
  std::vector<std::string> names;
  const auto add = [](hid_t, const char* name, const H5A_info_t*, void* out) -> herr_t {
    static_cast<std::vector<std::string>*>(out)->push_back(name);
    return 0;
  };
  if (H5Aiterate2(object.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, add, &names) < 0)
    bad(path, "attributes: " + h5_error());
  Facts out = Facts::object();
  for (const std::string& name : names) {
    const H5Id attribute(H5Aopen(object.get(), name.c_str(), H5P_DEFAULT), H5Aclose);
    if (!attribute) bad(path, fmt::format("attribute {}: {}", name, h5_error()));
    out[name] = attribute_value(path, name, attribute);
  }
  return out;
}

bool h5_has(const H5Id& file, const char* name) { return H5Lexists(file.get(), name, H5P_DEFAULT) > 0; }

std::vector<int64_t> h5_integers(const std::string& path, const H5Id& file, const char* name, int64_t count) {
  const Dataset d = open(path, file, name, H5T_INTEGER);
  if (d.count != count)
    bad(path, fmt::format("dataset {}: {} values, {} are expected", name, d.count, count));
  std::vector<int64_t> out(static_cast<size_t>(count));
  read(path, d, name, H5T_NATIVE_INT64, out.data());
  return out;
}

std::string h5_bytes(const std::string& path, const H5Id& file, const char* name) {
  const Dataset d = open(path, file, name, H5T_INTEGER);
  std::string out(static_cast<size_t>(d.count), '\0');
  read(path, d, name, H5T_NATIVE_UINT8, out.data());
  return out;
}

std::vector<std::string> h5_texts(const std::string& path, const H5Id& file, const char* name) {
  const Dataset d = open(path, file, name, H5T_STRING);
  const size_t size = H5Tget_size(d.type.get());
  std::string raw(static_cast<size_t>(d.count) * size, '\0');
  read(path, d, name, d.type.get(), raw.data());
  std::vector<std::string> out;
  for (size_t i = 0; i < static_cast<size_t>(d.count); ++i)
    out.push_back(to_text(raw.substr(i * size, size)));
  return out;
}

}  // namespace slip
