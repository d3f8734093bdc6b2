// SwiGLU of one element, the same bits wherever it is computed.
#pragma once
#include <cuda_runtime.h>

namespace slip {

__device__ inline float sigmoid(float z) { return 1.0f / (1.0f + expf(-z)); }
__device__ inline float activation(float gate, float s, float up) { return up * (gate * s); }

}  // namespace slip
