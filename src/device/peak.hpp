// What a GPU could compute, to set a run against.
#pragma once
#include <string>
#include <string_view>

namespace slip {

std::string gpu_name();  // of the current CUDA device; empty: none, or a build without CUDA
// Dense bf16 products a second as NVIDIA's data sheets declare them for the card of that name (without
// sparsity), in FLOP/s; 0: not in the list. Measured products reach about four fifths (kernels/README.md).
double declared_bf16_flops(std::string_view gpu_name);

}  // namespace slip
