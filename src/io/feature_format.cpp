#include "io/feature_format.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "io/h5_items.hpp"

namespace slip {
namespace {

std::string shown(const std::string& v) { return fmt::format("\"{}\"", v); }
template <class V> std::string shown(const V& v) { return fmt::format("{}", v); }

void get(const std::string& path, const H5Id& file, const char* name, std::string& v) {
  v = h5_text(path, file, name);
}
void get(const std::string& path, const H5Id& file, const char* name, int64_t& v) {
  v = h5_number(path, file, name);
}
void get(const std::string& path, const H5Id& file, const char* name, double& v) {
  v = h5_real(path, file, name);
}
void get(const std::string& path, const H5Id& file, const char* name, std::vector<int64_t>& v) {
  v = h5_numbers(path, file, name);
}

}  // namespace

std::vector<std::string> spec_differences(const FeatureSpec& mine, const FeatureSpec& other,
                                          const std::string& where) {
  std::vector<std::string> names, values;
  spec_fields(other, [&](const char* name, const auto& v) {
    names.push_back(name);
    values.push_back(shown(v));
  });
  std::vector<std::string> out;
  size_t i = 0;
  spec_fields(mine, [&](const char*, const auto& v) {
    if (names[i] != "writer" && shown(v) != values[i])
      out.push_back(fmt::format("{} is {}, but {} in {}", names[i], shown(v), values[i], where));
    ++i;
  });
  return out;
}

H5Id bf16_type() {
  H5Id type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  // In this order: a 32-bit type cannot become small before its fields are.
  check_h5(H5Tset_fields(type.get(), 15, 7, 8, 0, 7), "type bfloat16");
  check_h5(H5Tset_precision(type.get(), 16), "type bfloat16");
  check_h5(H5Tset_size(type.get(), 2), "type bfloat16");
  check_h5(H5Tset_ebias(type.get(), 127), "type bfloat16");
  return type;
}

void put_spec(const H5Id& file, const FeatureSpec& spec) {
  spec_fields(spec, [&](const char* name, const auto& value) { h5_put(file, name, value); });
}

FeatureSpec read_spec(const std::string& path, const H5Id& file) {
  FeatureSpec spec;
  spec_fields(spec, [&](const char* name, auto& value) { get(path, file, name, value); });
  return spec;
}

uint64_t tokens_checksum(const int32_t* ids, const uint8_t* mask, int64_t tokens) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, ids, static_cast<size_t>(tokens) * sizeof(int32_t));
  XXH3_64bits_update(&state, mask, static_cast<size_t>(tokens));
  return XXH3_64bits_digest(&state);
}

uint64_t features_checksum(const void* features, int64_t bytes) {
  return XXH3_64bits(features, static_cast<size_t>(bytes));
}

std::string FeatureTables::content_xxh3() const {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  const auto add = [&](const auto& v) { XXH3_64bits_update(&state, v.data(), v.size() * 8); };
  add(doc_offsets);
  add(feature_offsets);
  add(document_ids);
  add(features_xxh3);
  add(tokens_xxh3);
  return fmt::format("{:016x}", XXH3_64bits_digest(&state));
}

int64_t supervised_span(const uint8_t* mask, int64_t tokens) {
  for (int64_t p = tokens - 2; p >= 0; --p) {
    if (mask[p] != 0 && mask[p + 1] != 0) return p;
  }
  return 0;
}

}  // namespace slip
