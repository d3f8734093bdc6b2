// Small datasets of an HDF5 file, read whole: what only reports and decoding want of a shard.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "io/h5_items.hpp"

namespace slip {

// A dataset of one dimension and `count` values; fail_input for another length or kind.
std::vector<int64_t> h5_integers(const std::string& path, const H5Id& file, const char* name, int64_t count);
std::string h5_bytes(const std::string& path, const H5Id& file, const char* name);
std::vector<std::string> h5_texts(const std::string& path, const H5Id& file, const char* name);

// A text attribute of the file at `path`; empty where it has none or is no HDF5 file.
std::string h5_attribute_text(const std::string& path, const char* name);

}  // namespace slip
