// The gated delta rule on sm_90a in bf16, chunk by chunk on tensor cores (gated_delta.hpp has the formulas),
// and the kernel that every other shape, type and device takes.
//
// Two kernels. `prepare`, a block a (chunk, key head): what needs no state, that is M, W = M diag(beta e^G)
// K, U = M diag(beta) V and P = Q K^T o D of each of its value heads, to scratch. `scan`, a block a
// (document, value head, slice of the state's columns): walks over the chunks with the state in accumulators,
// R = U - W S and the output never leave the chip before they are done.
//
// Supported: heads of 128 columns, at most 4 value heads a key head, views whose rows start at multiples of
// 16 bytes. Results are the same bits at every launch, for a document alone and in any row, and for either
// width of slice. Rows after a document's last one are multiplied by zero, so they must be finite: the
// documents of a row share NaN and infinity.
#pragma once
#include "kernels/gated_delta.hpp"

namespace slip {

template <class T> void gated_delta_fwd_simple(const GatedDeltaFwd<T>&, CudaStream);

bool hopper_supports(const GatedDeltaFwd<Bf16>&);
void gated_delta_fwd_hopper(const GatedDeltaFwd<Bf16>&, CudaStream);

// Columns of the state that a block of `scan` has. A step of one chunk takes 1.17 us with 64 columns and 1.8
// us with 128 (measured on an H200), but those need half as many blocks, one a multiprocessor: what is done
// first wins. `chunks` is the sum over the documents, `longest` of one.
inline int delta_slice(int value_heads, int64_t chunks, int64_t longest, int multiprocessors) {
  const auto us = [&](int slices, double step) {
    const double turns =
        static_cast<double>(slices * value_heads * chunks) / static_cast<double>(multiprocessors);
    return step * (turns > static_cast<double>(longest) ? turns : static_cast<double>(longest));
  };
  return us(2, 1.17) <= us(1, 1.8) ? 64 : 128;
}

}  // namespace slip
