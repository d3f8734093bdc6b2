#include "io/h5_items.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace slip {
namespace {

constexpr size_t kMaxText = 64 << 20;  // bytes of a text attribute

[[noreturn]] void bad(const std::string& path, const std::string& what) {
  fail_input(fmt::format("{}: {}", path, what));
}

// count: values that are expected; -1: any number of them.
H5Id open_attribute(const std::string& path, const H5Id& object, const std::string& name, int64_t count) {
  if (H5Aexists(object.get(), name.c_str()) <= 0)
    bad(path, fmt::format("attribute {} is missing: not a shard, or one of another writer", name));
  H5Id a(H5Aopen(object.get(), name.c_str(), H5P_DEFAULT), H5Aclose);
  if (!a) bad(path, fmt::format("attribute {}: {}", name, h5_error()));
  const H5Id space(H5Aget_space(a.get()), H5Sclose);
  if (count >= 0 && H5Sget_simple_extent_npoints(space.get()) != count)
    bad(path, fmt::format("attribute {}: one value is expected", name));
  return a;
}

}  // namespace

H5Id open_h5(const std::string& path) {
  struct stat s {};
  if (stat(path.c_str(), &s) != 0) bad(path, std::strerror(errno));
  if (!S_ISREG(s.st_mode)) bad(path, "a shard is a file");
  const H5Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  if (!access || H5Pset_file_locking(access.get(), 0, 1) < 0)
    fail("HDF5: file access properties: " + h5_error());
  H5Id file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (file) return file;
  const std::string why = h5_error();
  const bool locked = why.find("lock") != std::string::npos;
  bad(path,
      fmt::format(
          "cannot be opened as HDF5 ({} bytes): {}{}", s.st_size, why,
          locked ? "; a finished shard needs no lock: HDF5_USE_FILE_LOCKING=FALSE switches them off" : ""));
}

std::string h5_type_text(const H5Id& type) {
  const size_t size = H5Tget_size(type.get());
  switch (H5Tget_class(type.get())) {
    case H5T_INTEGER:
      return fmt::format("{}int{}", H5Tget_sign(type.get()) == H5T_SGN_NONE ? "u" : "", 8 * size);
    case H5T_FLOAT:
      return fmt::format("float{}", 8 * size);
    case H5T_STRING:
      return "text";
    default:
      return fmt::format("another type of {} bytes", size);
  }
}

std::string h5_text(const std::string& path, const H5Id& object, const std::string& name) {
  const H5Id a = open_attribute(path, object, name, 1);
  const H5Id type(H5Aget_type(a.get()), H5Tclose);
  if (H5Tget_class(type.get()) != H5T_STRING)
    bad(path, fmt::format("attribute {}: text is expected, found {}", name, h5_type_text(type)));
  const H5Id memory(H5Tcopy(type.get()), H5Tclose);
  std::string text;
  if (H5Tis_variable_str(type.get()) > 0) {
    char* value = nullptr;
    if (H5Aread(a.get(), memory.get(), &value) < 0)
      bad(path, fmt::format("attribute {}: {}", name, h5_error()));
    if (value != nullptr) text = value;
    H5free_memory(value);
  } else {
    const size_t size = H5Tget_size(type.get());
    if (size > kMaxText) bad(path, fmt::format("attribute {}: {} bytes of text", name, size));
    text.resize(size);
    if (H5Aread(a.get(), memory.get(), text.data()) < 0)
      bad(path, fmt::format("attribute {}: {}", name, h5_error()));
    text.resize(std::min(text.size(), text.find('\0')));
  }
  return text;
}

int64_t h5_number(const std::string& path, const H5Id& object, const std::string& name) {
  const H5Id a = open_attribute(path, object, name, 1);
  const H5Id type(H5Aget_type(a.get()), H5Tclose);
  if (H5Tget_class(type.get()) != H5T_INTEGER)
    bad(path, fmt::format("attribute {}: an integer is expected, found {}", name, h5_type_text(type)));
  int64_t value = 0;
  if (H5Aread(a.get(), H5T_NATIVE_INT64, &value) < 0)
    bad(path, fmt::format("attribute {}: {}", name, h5_error()));
  return value;
}

int64_t h5_length(const H5Id& dataset) {
  const H5Id space(H5Dget_space(dataset.get()), H5Sclose);
  return H5Sget_simple_extent_npoints(space.get());
}

bool h5_has(const H5Id& file, const char* name) { return H5Lexists(file.get(), name, H5P_DEFAULT) > 0; }

// A dataset of one dimension and exactly this type. Deflate makes data at most 1032 times smaller: a length
// that the stored bytes cannot hold is a lie, and is refused before anything of that length is read.
H5Id h5_dataset(const std::string& path, const H5Id& file, const char* name, hid_t type) {
  if (!h5_has(file, name)) bad(path, fmt::format("dataset {} is missing", name));
  H5Id d(H5Dopen2(file.get(), name, H5P_DEFAULT), H5Dclose);
  if (!d) bad(path, fmt::format("dataset {}: {}", name, h5_error()));
  const H5Id found(H5Dget_type(d.get()), H5Tclose), wanted(H5Tcopy(type), H5Tclose);
  if (H5Tequal(found.get(), wanted.get()) <= 0) {
    bad(path,
        fmt::format("dataset {}: {} is expected, found {}", name, h5_type_text(wanted), h5_type_text(found)));
  }
  const H5Id space(H5Dget_space(d.get()), H5Sclose);
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (rank != 1) bad(path, fmt::format("dataset {}: one dimension is expected, found {}", name, rank));
  const int64_t length = h5_length(d);
  const double bytes = static_cast<double>(length) * static_cast<double>(H5Tget_size(type));
  const double stored = static_cast<double>(H5Dget_storage_size(d.get()));
  if (bytes > 1100 * stored + 4096) {
    bad(path, fmt::format("dataset {}: {} values declared, {} bytes stored: it was not written to the end",
                          name, length, stored));
  }
  return d;
}

void h5_read(const std::string& path, const char* name, const H5Id& dataset, hid_t type, int64_t first,
             int64_t count, void* out) {
  if (count == 0) return;
  const hsize_t start = static_cast<hsize_t>(first), size = static_cast<hsize_t>(count);
  const H5Id memory(H5Screate_simple(1, &size, nullptr), H5Sclose),
      space(H5Dget_space(dataset.get()), H5Sclose);
  if (H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, nullptr, &size, nullptr) < 0 ||
      H5Dread(dataset.get(), type, memory.get(), space.get(), H5P_DEFAULT, out) < 0) {
    bad(path, fmt::format("dataset {}: reading {} values at {}: {}", name, count, first, h5_error()));
  }
}

std::vector<int64_t> h5_integers(const std::string& path, const char* name, const H5Id& dataset) {
  std::vector<int64_t> values(static_cast<size_t>(h5_length(dataset)));
  h5_read(path, name, dataset, H5T_NATIVE_INT64, 0, static_cast<int64_t>(values.size()), values.data());
  return values;
}

double h5_real(const std::string& path, const H5Id& object, const std::string& name) {
  const H5Id a = open_attribute(path, object, name, 1);
  const H5Id type(H5Aget_type(a.get()), H5Tclose);
  if (H5Tget_class(type.get()) != H5T_FLOAT)
    bad(path,
        fmt::format("attribute {}: a floating-point number is expected, found {}", name, h5_type_text(type)));
  double value = 0;
  if (H5Aread(a.get(), H5T_NATIVE_DOUBLE, &value) < 0)
    bad(path, fmt::format("attribute {}: {}", name, h5_error()));
  return value;
}

std::vector<int64_t> h5_numbers(const std::string& path, const H5Id& object, const std::string& name) {
  const H5Id a = open_attribute(path, object, name, -1);
  const H5Id type(H5Aget_type(a.get()), H5Tclose), space(H5Aget_space(a.get()), H5Sclose);
  if (H5Tget_class(type.get()) != H5T_INTEGER)
    bad(path, fmt::format("attribute {}: integers are expected, found {}", name, h5_type_text(type)));
  std::vector<int64_t> values(static_cast<size_t>(H5Sget_simple_extent_npoints(space.get())));
  if (!values.empty() && H5Aread(a.get(), H5T_NATIVE_INT64, values.data()) < 0)
    bad(path, fmt::format("attribute {}: {}", name, h5_error()));
  return values;
}

void check_h5(int64_t rc, const std::string& what) {
  if (rc < 0) fail(fmt::format("{}: {}", what, h5_error()));
}

H5Id timeless(hid_t kind) {
  H5Id how(H5Pcreate(kind), H5Pclose);
  check_h5(H5Pset_obj_track_times(how.get(), false), "creation properties");
  return how;
}

namespace {

void write_attribute(const H5Id& object, const std::string& name, hid_t file_type, const H5Id& space,
                     hid_t memory_type, const void* value) {
  const H5Id a(H5Acreate2(object.get(), name.c_str(), file_type, space.get(), H5P_DEFAULT, H5P_DEFAULT),
               H5Aclose);
  check_h5(a.get(), "attribute " + name);
  check_h5(H5Awrite(a.get(), memory_type, value), "attribute " + name);
}

}  // namespace

void h5_put(const H5Id& object, const std::string& name, int64_t value) {
  write_attribute(object, name, H5T_STD_I64LE, H5Id(H5Screate(H5S_SCALAR), H5Sclose), H5T_NATIVE_INT64,
                  &value);
}

void h5_put(const H5Id& object, const std::string& name, double value) {
  write_attribute(object, name, H5T_IEEE_F64LE, H5Id(H5Screate(H5S_SCALAR), H5Sclose), H5T_NATIVE_DOUBLE,
                  &value);
}

void h5_put(const H5Id& object, const std::string& name, const std::string& value) {
  const H5Id type(H5Tcopy(H5T_C_S1), H5Tclose);
  const std::string text = value.empty() ? std::string(1, '\0') : value;  // no text has no bytes
  check_h5(H5Tset_size(type.get(), text.size()), "attribute " + name);
  check_h5(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), "attribute " + name);
  check_h5(H5Tset_cset(type.get(), H5T_CSET_UTF8), "attribute " + name);
  write_attribute(object, name, type.get(), H5Id(H5Screate(H5S_SCALAR), H5Sclose), type.get(), text.data());
}

void h5_put(const H5Id& object, const std::string& name, const std::vector<int64_t>& values) {
  const hsize_t count = values.size();
  write_attribute(object, name, H5T_STD_I64LE, H5Id(H5Screate_simple(1, &count, nullptr), H5Sclose),
                  H5T_NATIVE_INT64, values.data());
}

void h5_put_dataset(const H5Id& file, const std::string& name, hid_t type, int64_t count, const void* data) {
  constexpr hsize_t kChunk = 65536;
  const hsize_t length = static_cast<hsize_t>(count), chunk = std::min(length, kChunk);
  const H5Id space(H5Screate_simple(1, &length, nullptr), H5Sclose), how = timeless(H5P_DATASET_CREATE);
  if (count > 0) {
    check_h5(H5Pset_chunk(how.get(), 1, &chunk), "dataset " + name);
    check_h5(H5Pset_shuffle(how.get()), "dataset " + name);
    check_h5(H5Pset_deflate(how.get(), 4), "dataset " + name);
  }
  const H5Id d(H5Dcreate2(file.get(), name.c_str(), type, space.get(), H5P_DEFAULT, how.get(), H5P_DEFAULT),
               H5Dclose);
  check_h5(d.get(), "dataset " + name);
  if (count > 0) check_h5(H5Dwrite(d.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), "dataset " + name);
}

}  // namespace slip
