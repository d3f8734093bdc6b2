// Which rank has which GPU, without CUDA: the rules alone.
#pragma once
#include <array>
#include <string>
#include <vector>

namespace slip {

using GpuId = std::array<char, 16>;  // a device's UUID

// Names the first ranks that have the same GPU, and its id; empty when all differ.
std::string shared_gpus(const std::vector<GpuId>& of_rank);

}  // namespace slip
