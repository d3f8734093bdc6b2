// The header of a safetensors file as text: parsed and checked here, without any file, so that every lie has
// a test.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "io/safetensors.hpp"

namespace slip {

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // by offset; offsets count from the beginning of the file
  std::map<std::string, std::string> metadata;
};

// `text`: the N bytes after the length. `file_bytes`: size of the whole file, 8 + N included. fail_input
// names `path`, the tensor, what is declared and what is found.
SafetensorsHeader parse_safetensors_header(const std::string& path, const std::string& text,
                                           int64_t file_bytes);

inline constexpr int64_t kMaxHeaderBytes = 100'000'000;  // that of the reference reader
inline constexpr size_t kMaxTensors = 1'000'000;
inline constexpr size_t kMaxTensorName = 1024;
inline constexpr size_t kMaxRank = 64;

}  // namespace slip
