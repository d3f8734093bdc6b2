#include "launch/gpus.hpp"

#include <fmt/format.h>

#include <map>

namespace slip {

std::string shared_gpus(const std::vector<GpuId>& of_rank) {
  std::map<GpuId, size_t> seen;
  for (size_t rank = 0; rank < of_rank.size(); ++rank) {
    const auto [first, is_new] = seen.emplace(of_rank[rank], rank);
    if (is_new) continue;
    std::string id;
    for (const char byte : of_rank[rank]) id += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return fmt::format("ranks {} and {} have the same GPU {}", first->second, rank, id);
  }
  return "";
}

}  // namespace slip
