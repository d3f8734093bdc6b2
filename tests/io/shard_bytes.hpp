// Token shards written through HDF5's C API, right or wrong as a test wants them.
#pragma once
#include <hdf5.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace slip::testing {

struct ShardSpec {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  std::vector<int64_t> offsets;
  std::map<std::string, std::string> texts = {{"format", "slipstream-tokens"}, {"tokenizer", "bytes"},
                                              {"tokenizer_sha256", "aa"},      {"template_sha256", "bb"},
                                              {"source", "x.jsonl"},           {"writer", "test"}};
  std::map<std::string, int64_t> numbers = {{"format_version", 1},
                                            {"vocab_size", 272},
                                            {"mask_token_id", 258},
                                            {"max_length", 0},
                                            {"prompts", 0},
                                            {"dropped_no_supervision", 0},
                                            {"dropped_too_long", 0},
                                            {"truncated_documents", 0},
                                            {"skipped_conversations", 0},
                                            {"mapped_conversations", 0},
                                            {"expanded_conversations", 0},
                                            {"bad_lines", 0},
                                            {"mask_tokens_in_text", 0}};
  std::map<std::string, std::map<std::string, int64_t>> crc32;  // dataset -> attributes
  std::set<std::string> leave_out;                              // attributes and datasets
  hid_t ids_type = H5T_STD_I32LE;
  bool variable_text = false, deflate = true;
  std::vector<uint8_t> token_bytes;
  std::vector<int64_t> token_byte_offsets;

  // Documents of these lengths; id of token t is t mod 256, all supervised.
  static ShardSpec of(const std::vector<int64_t>& lengths) {
    ShardSpec s;
    s.offsets = {0};
    for (const int64_t n : lengths) s.offsets.push_back(s.offsets.back() + n);
    for (int64_t t = 0; t < s.offsets.back(); ++t) s.ids.push_back(static_cast<int32_t>(t % 256));
    s.mask.assign(s.ids.size(), 1);
    return s;
  }
};

inline void must(int64_t rc) {
  if (rc < 0) throw std::runtime_error("HDF5 failed in a test's writer");
}

inline void write_number(hid_t object, const std::string& name, int64_t value) {
  const hid_t space = H5Screate(H5S_SCALAR);
  const hid_t a = H5Acreate2(object, name.c_str(), H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
  must(H5Awrite(a, H5T_NATIVE_INT64, &value));
  must(H5Aclose(a));
  must(H5Sclose(space));
}

inline void write_text(hid_t object, const std::string& name, const std::string& value, bool variable) {
  const hid_t space = H5Screate(H5S_SCALAR), type = H5Tcopy(H5T_C_S1);
  must(H5Tset_size(type, variable ? H5T_VARIABLE : std::max<size_t>(1, value.size())));
  must(H5Tset_strpad(type, variable ? H5T_STR_NULLTERM : H5T_STR_NULLPAD));
  must(H5Tset_cset(type, H5T_CSET_UTF8));
  const hid_t a = H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT);
  const char* text = value.c_str();
  must(variable ? H5Awrite(a, type, &text) : H5Awrite(a, type, text));
  must(H5Aclose(a));
  must(H5Tclose(type));
  must(H5Sclose(space));
}

template <class T>
void write_dataset(hid_t file, const ShardSpec& s, const std::string& name, hid_t type, hid_t memory,
                   const std::vector<T>& values) {
  if (s.leave_out.count(name) != 0) return;
  const hsize_t length = values.size();
  const hid_t space = H5Screate_simple(1, &length, nullptr), how = H5Pcreate(H5P_DATASET_CREATE);
  if (s.deflate && length > 0) {
    const hsize_t chunk = std::min<hsize_t>(length, 65536);
    must(H5Pset_chunk(how, 1, &chunk));
    must(H5Pset_shuffle(how));
    must(H5Pset_deflate(how, 4));
  }
  const hid_t d = H5Dcreate2(file, name.c_str(), type, space, H5P_DEFAULT, how, H5P_DEFAULT);
  must(d);
  if (length > 0) must(H5Dwrite(d, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  if (s.crc32.count(name) != 0) {
    for (const auto& [attribute, value] : s.crc32.at(name)) write_number(d, attribute, value);
  }
  must(H5Dclose(d));
  must(H5Pclose(how));
  must(H5Sclose(space));
}

inline std::string write_shard(const std::string& path, const ShardSpec& s) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  must(file);
  std::map<std::string, int64_t> numbers = s.numbers;
  numbers.emplace("documents",
                  static_cast<int64_t>(s.offsets.size()) - 1);  // unless the test says something else
  numbers.emplace("tokens", static_cast<int64_t>(s.ids.size()));
  numbers.emplace("supervised_tokens", std::count(s.mask.begin(), s.mask.end(), 1));
  for (const auto& [name, value] : numbers) {
    if (s.leave_out.count(name) == 0) write_number(file, name, value);
  }
  for (const auto& [name, value] : s.texts) {
    if (s.leave_out.count(name) == 0) write_text(file, name, value, s.variable_text);
  }
  write_dataset(file, s, "input_ids", s.ids_type, H5T_NATIVE_INT32, s.ids);
  write_dataset(file, s, "loss_mask", H5T_STD_U8LE, H5T_NATIVE_UINT8, s.mask);
  write_dataset(file, s, "doc_offsets", H5T_STD_I64LE, H5T_NATIVE_INT64, s.offsets);
  if (!s.token_byte_offsets.empty()) {
    write_dataset(file, s, "token_bytes", H5T_STD_U8LE, H5T_NATIVE_UINT8, s.token_bytes);
    write_dataset(file, s, "token_byte_offsets", H5T_STD_I64LE, H5T_NATIVE_INT64, s.token_byte_offsets);
  }
  must(H5Fclose(file));
  return path;
}

}  // namespace slip::testing
