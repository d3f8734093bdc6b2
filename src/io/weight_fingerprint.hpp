// Tells two sets of weights apart without reading all of them.
#pragma once
#include <string>

#include "io/safetensors.hpp"

namespace slip {

// XXH3-64 as 16 hex digits over name, dtype, shape and 16 samples of 64 bytes of every tensor, in the order
// of the names. No checksum: a change outside the samples goes unseen.
std::string weight_fingerprint(const WeightFolder&);

}  // namespace slip
