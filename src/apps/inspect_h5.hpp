// What `inspect` reads of an HDF5 file beyond what training needs.
#pragma once
#include <string>

#include "apps/inspect.hpp"
#include "io/h5_whole.hpp"

namespace slip {

Facts h5_attributes(const std::string& path, const H5Id& object);  // integers and text, by name

}  // namespace slip
