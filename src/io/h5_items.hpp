// Attributes and datasets of a shard. Reading refuses, with fail_input that names file, item, declared and
// found value, what is missing, of another type or longer than the file can hold. Writing fails with HDF5's
// reason.
#pragma once
#include <string>
#include <vector>

#include "io/h5.hpp"

namespace slip {

H5Id open_h5(const std::string& path);  // for reading; needs no lock
bool h5_has(const H5Id& file, const char* name);
std::string h5_type_text(const H5Id& type);  // "int32"

std::string h5_text(const std::string& path, const H5Id& object, const std::string& name);  // attributes
int64_t h5_number(const std::string& path, const H5Id& object, const std::string& name);
double h5_real(const std::string& path, const H5Id& object, const std::string& name);
std::vector<int64_t> h5_numbers(const std::string& path, const H5Id& object, const std::string& name);

// A dataset of one dimension and exactly this type.
H5Id h5_dataset(const std::string& path, const H5Id& file, const char* name, hid_t type);
int64_t h5_length(const H5Id& dataset);  // elements
void h5_read(const std::string& path, const char* name, const H5Id& dataset, hid_t memory_type, int64_t first,
             int64_t count, void* out);
std::vector<int64_t> h5_integers(const std::string& path, const char* name, const H5Id& dataset);

void check_h5(int64_t rc, const std::string& what);  // fail where a call of HDF5 says it failed
H5Id timeless(hid_t kind);  // creation properties (H5P_DATASET_CREATE, ...): the object carries no time
void h5_put(const H5Id& object, const std::string& name, int64_t value);  // attributes
void h5_put(const H5Id& object, const std::string& name, double value);
void h5_put(const H5Id& object, const std::string& name, const std::string& value);
void h5_put(const H5Id& object, const std::string& name, const std::vector<int64_t>& values);
// One dimension, chunks of 65 536, shuffle and deflate 4, as all small datasets of shards.
void h5_put_dataset(const H5Id& file, const std::string& name, hid_t type, int64_t count, const void* data);

}  // namespace slip
