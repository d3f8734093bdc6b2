#include "io/h5_whole.hpp"

#include <fmt/format.h>

#include <algorithm>

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

std::string h5_attribute_text(const std::string& path, const char* name) {
  h5_quiet();
  const H5Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_file_locking(access.get(), 0, 1);
  const H5Id file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!file || H5Aexists(file.get(), name) <= 0) return "";
  const H5Id a(H5Aopen(file.get(), name, H5P_DEFAULT), H5Aclose), type(H5Aget_type(a.get()), H5Tclose);
  if (H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) > 0) return "";
  std::string out(H5Tget_size(type.get()), '\0');
  return H5Aread(a.get(), type.get(), out.data()) < 0 ? "" : to_text(std::move(out));
}

}  // namespace slip
