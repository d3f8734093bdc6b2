#include "io/weight_fingerprint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "io/file.hpp"

namespace slip {

std::string weight_fingerprint(const WeightFolder& folder) {
  constexpr int64_t kSamples = 16, kSample = 64;
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  std::map<std::string, std::unique_ptr<InputFile>> files;
  std::vector<std::string> names = folder.names();
  std::sort(names.begin(), names.end());
  std::array<char, kSample> sample{};
  for (const std::string& name : names) {
    const TensorInfo& t = *folder.find(name);
    const std::string head = fmt::format("{} {} {}\n", name, t.dtype_text, shape_text(t.shape));
    XXH3_64bits_update(&state, head.data(), head.size());
    std::unique_ptr<InputFile>& file = files[t.file];
    if (!file) file = std::make_unique<InputFile>(t.file);
    const int64_t size = std::min(kSample, t.bytes), room = t.bytes - size;
    for (int64_t i = 0; i < kSamples; ++i) {
      file->read(t.offset + room / (kSamples - 1) * i, size, sample.data());
      XXH3_64bits_update(&state, sample.data(), static_cast<size_t>(size));
    }
  }
  return fmt::format("{:016x}", XXH3_64bits_digest(&state));
}

}  // namespace slip
