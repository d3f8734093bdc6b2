// One row through the drafter: forward, loss and (when training) backward, in passes of blocks. No
// communication: gradients (numerators) are left in drafter.grads, sums are returned.
#pragma once
#include <optional>
#include <vector>

#include "model/drafter.hpp"
#include "train/sums.hpp"

namespace slip {

// Device arrays of one pass and the scratch of the head.
template <class T> struct PassBuffers {
  int *ids, *position, *label, *rows;  // (M)
  int *anchor, *lo;                    // (blocks)
  uint8_t *valid, *correct;            // (M)
  Acc<T>*nll, *weight;                 // (M)
  int64_t chunk_rows;
  T *chunk_hidden, *chunk_dhidden, *chunk_logits;
  int* non_finite;  // (1)
  Fp8Head fp8;      // with limits.fp8_head
  // Host copies, kept until the queue has passed them.
  std::vector<int> host_rows, host_begin;
  std::vector<int> host_anchor, host_lo;
  std::vector<Acc<T>> host_nll, host_weight;
  std::vector<uint8_t> host_correct;
};
template <class T> PassBuffers<T> make_pass_buffers(const DrafterModel&, const DrafterLimits&, Arena&);
// Once, before the first training pass. Nothing without limits.fp8_head.
template <class T> void quantize_head(PassBuffers<T>&, View2<const T> head, const Queue&);

// The two pieces of a row that `replay.hpp` shares. Joins the taps of the first `tokens` tokens into
// drafter.context.x; false when one is NaN or infinite. Uploads blocks [first, first + count) of a row.
template <class T>
bool join_row(Drafter<T>&, PassBuffers<T>&, const Bf16* features, int64_t slot_tokens, int64_t tokens,
              const Queue&);
template <class T>
Blocks upload_blocks(PassBuffers<T>&, const RowBlocks&, int64_t first, int64_t count, const Queue&);

enum class RowMode { train, evaluate };

// `features`: tap-major bf16 [K][slot_tokens][H] where the queue's memory is. Returns nullopt, and leaves the
// gradients alone, when a feature that would be read is NaN or infinite. on_ready: drafter.hpp; called in the
// last pass and for the context.
template <class T>
std::optional<StepSums> run_row(Drafter<T>&, PassBuffers<T>&, const Bf16* features, int64_t slot_tokens,
                                const int* position, const RowBlocks&, View2<const T> embed,
                                View2<const T> head, const LossRule&, RowMode, const Queue&,
                                const OnReady& on_ready = {});
// The same once drafter.context.x is filled. `hidden_out`, when given, receives blocks.hidden of every pass
// (host).
template <class T>
StepSums run_blocks(Drafter<T>&, PassBuffers<T>&, const int* position, const RowBlocks&, View2<const T> embed,
                    View2<const T> head, const LossRule&, RowMode, const Queue&,
                    std::vector<T>* hidden_out = nullptr, const OnReady& on_ready = {});

}  // namespace slip
