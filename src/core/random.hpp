// Counter-based random numbers, equal on host and device: the value is a pure function of key and counter, so
// anchors, orders and initial weights do not depend on ranks, batches or resumes.
// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "core/host_device.hpp"

namespace slip {

struct Philox4 {
  uint32_t v[4];
};

SLIP_HD inline Philox4 philox(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

SLIP_HD inline uint64_t random_u64(uint64_t key, uint64_t high, uint64_t low) {
  const Philox4 r = philox(key, high, low);
  return (uint64_t{r.v[1]} << 32) | r.v[0];
}

// Standard normal by Box-Muller from one Philox call; the first number is in (0, 1].
SLIP_HD inline float random_normal(uint64_t key, uint64_t high, uint64_t low) {
  const Philox4 r = philox(key, high, low);
  const float u1 = (static_cast<float>(r.v[0] >> 8) + 1.0f) * 0x1p-24f;
  const float u2 = static_cast<float>(r.v[1] >> 8) * 0x1p-24f;
  return sqrtf(-2.0f * logf(u1)) * cosf(6.28318530717958648f * u2);
}

// FNV-1a, 64 bit: turns a tensor's name into a counter.
constexpr uint64_t fnv1a64(std::string_view s) {
  uint64_t h = 0xcbf29ce484222325u;
  for (const char c : s) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return h;
}

}  // namespace slip
