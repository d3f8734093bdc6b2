#include "apps/inspect_h5.hpp"

#include <fmt/format.h>

namespace slip {
namespace {

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

}  // namespace slip
