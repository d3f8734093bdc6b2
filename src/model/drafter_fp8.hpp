// What a drafter keeps for products in fp8 (kernels/fp8.hpp): weights in both orientations, quantized once
// after each change, and inputs of the linear layers, transposed, from the forward to the backward pass.
#pragma once
#include <vector>

#include "kernels/fp8.hpp"

namespace slip {

struct Fp8Weight {
  Fp8Rows rows, columns;  // (out, in), (in, out)
};
struct Fp8Layer {
  Fp8Weight q, kv, o, gate_up, down;  // kv: a part of kv_all
  Fp8Rows u, attention, y, act;       // (columns, M) inputs of q and kv, o, gate_up, down
};

struct DrafterFp8 {
  bool on = false;  // what is queued now: the training pass; evaluation and decoding compute as a server does
  std::vector<Fp8Layer> layers;
  Fp8Rows fc;
  Fp8Weight kv_all;
  // Reused: an input or a gradient, a gradient transposed, an input of the context's products transposed.
  E4m3 *rows = nullptr, *columns = nullptr, *input = nullptr;
  float *row_scale = nullptr, *column_scale = nullptr, *input_scale = nullptr;
  uint32_t* largest = nullptr;
};

}  // namespace slip
