// Bytes of a fuzzer as a list of changes to something good.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

namespace slip::testing {

struct Changes {
  const uint8_t* at;
  const uint8_t* end;
  bool any() const { return at != end; }
  uint8_t byte() { return at == end ? 0 : *at++; }
  // Small numbers, and those at the edges of types.
  int64_t number() {
    constexpr std::array<int64_t, 12> edges = {-1,        INT64_MIN,        INT64_MAX,  INT32_MAX,
                                               INT32_MIN, int64_t{1} << 32, UINT32_MAX, 65536,
                                               1 << 20,   1 << 30,          258,        272};
    const uint8_t b = byte();
    return b < 240 ? b : edges[static_cast<size_t>(b - 240) % edges.size()];
  }
  template <class T> void of(std::vector<T>& values) {
    const uint8_t how = byte();
    if (how < 16) values.resize(how);
    if (how < 24) values.insert(values.end(), 1, static_cast<T>(number()));
    if (how >= 24 && !values.empty()) values[how % values.size()] = static_cast<T>(number());
  }
};

}  // namespace slip::testing
