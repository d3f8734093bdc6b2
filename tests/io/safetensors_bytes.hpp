// safetensors files written by hand, with whatever header a test wants.
#pragma once
#include <cstdint>
#include <string>

namespace slip::testing {

inline std::string safetensors_bytes(const std::string& header, size_t data_bytes = 0) {
  const uint64_t n = header.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + header + std::string(data_bytes, '\1');
}

// One entry of a header; the file's data begins with its tensors in the order of `begin`.
inline std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}";
}

}  // namespace slip::testing
