// The DFlash drafter, forward and backward by hand (dflash.md 1.2, 2, 3.4). A row is trained as one context
// and passes of blocks over it:
//   context_forward -> { blocks_forward -> (loss) -> blocks_backward } per pass -> context_backward
// Blocks do not interact, so passes accumulate exactly. Gradients are added to `grads`; the caller zeroes
// them.
#pragma once
#include <functional>
#include <vector>

#include "device/arena.hpp"
#include "model/drafter_fp8.hpp"
#include "model/packed.hpp"
#include "model/weights.hpp"

namespace slip {

struct DrafterLimits {
  int64_t context;                     // tokens of a row
  int64_t blocks;                      // blocks of a pass
  int64_t positions;                   // rotary table: longest document plus a block
  bool fp8 = false, fp8_head = false;  // products of the layers, of the head: memory for them
};

// Rounding to e4m3 moves a logit by a few hundredths of |h| |w| / sqrt(H): far below what decides between two
// tokens in a wide model, a per cent of the loss in one of a few hundred columns, whose head costs nothing
// anyway. Products want 16 at a time.
inline bool fp8_suits_head(const DrafterModel& m) { return m.hidden >= 1024 && m.vocab % 16 == 0; }

// Refuses, exit code 2, what cuBLASLt's products in fp8 do not take. `asked`: the option or key.
void check_fp8_sizes(const DrafterModel&, const char* asked);

// Activations of a row's context, kept until context_backward, which puts gradients in their places.
template <class T> struct ContextBuffers {
  View2<T> x;         // (S, K*H) joined taps
  View2<T> fc, c;     // (S, H) fc output and its norm: what all layers project; then the gradient in c
  Acc<T>* inv_rms;    // (S)
  View2<T> kv;        // (S, layers*2*kv_heads*d) projections, before norm and rotation of the keys;
                      // then their gradient, as the products read it
  View2<T> k;         // (S, layers*kv_heads*d) keys as attention reads them
  Acc<T>* k_inv_rms;  // (layers, S, kv_heads)
  View2<Acc<T>> dkv;  // gradient of keys (as attention reads them) and values, summed over the passes
};

// Activations of one layer for one pass of blocks; M = blocks * block rows.
template <class T> struct LayerBuffers {
  View2<T> z, u, q_project, kv, q, k, attention, z_mid, y;
  View2<T> gate_up;  // its gradient takes its place
  Acc<T>*inv_rms, *q_inv_rms, *k_inv_rms, *mid_inv_rms, *lse;
};
template <class T> struct BlockBuffers {
  std::vector<LayerBuffers<T>> layers;
  View2<T> z_out, hidden;  // (M, H) the stream after the last layer, and after the final norm
  Acc<T>* inv_rms;         // (M)
  // Reused by every layer.
  View2<T> delta;    // (M, H) a sublayer's output; backward: gradient of the stream
  View2<T> act;      // (M, I) SwiGLU's output; backward: its gradient, then itself, computed again
  View2<T> dhidden;  // (M, H) gradient of `hidden`, then of every norm's output
  View2<T> dattention, dq, dkv;
  Acc<T>* scratch;  // of the backward pass, or of attention where there is none
};

template <class T> struct Drafter {
  DrafterModel model;
  DrafterLimits limits;
  ParameterLayout layout;
  T* weights;     // (layout.count)
  Acc<T>* grads;  // (layout.count); null: it only decodes, its weights stay
  DrafterViews<T> w;
  DrafterViews<Acc<T>> g;
  RopeTable rope;
  ContextBuffers<T> context;
  BlockBuffers<T> blocks;
  DrafterFp8 fp8;  // empty without limits.fp8
};
template <class T> Drafter<T> make_drafter(const DrafterModel&, const DrafterLimits&, Arena&, const Queue&);
template <class T> void set_weights(Drafter<T>&, const std::vector<float>& flat, const Queue&);
// To be called by whoever has changed `weights` in another way; set_weights does. Nothing without limits.fp8.
template <class T> void quantize_weights(Drafter<T>&, const Queue&);

// Blocks of one pass, where the queue's memory is; rows = blocks * model.block, slots fastest.
struct Blocks {
  int64_t count = 0;
  const int* ids = nullptr;       // (rows) slot 0: the anchor's token, else the mask token
  const int* position = nullptr;  // (rows) position in the document
  const int* anchor = nullptr;    // (count) row index of the anchor token, not descending
  const int* lo = nullptr;        // (count) first token of its document
  bool one_document = false;      // for all blocks; may be false though they do (attention.hpp)
};

// `context.x` holds the joined taps of the first `tokens` tokens of the row (as many as any block sees).
template <class T> void context_forward(Drafter<T>&, int64_t tokens, const int* position, const Queue&);
// The part of it that decoding repeats: context.x holds the taps of the next `count` tokens, whose keys and
// values become rows first .. first + count of context.k and context.kv.
template <class T>
void context_extend(Drafter<T>&, int64_t first, int64_t count, const int* position, const Queue&);
// Result: blocks.hidden, (rows, H) after the final norm.
template <class T>
void blocks_forward(Drafter<T>&, const Blocks&, int64_t tokens, View2<const T> embed, const Queue&);

// Gradients become final from the end of the flat buffer to its begin: layer by layer downwards, in a layer
// the MLP and the attention's output before the queries; then, which the context adds to, the keys and values
// of all layers with the norms, and fc last, a few rows at a time. The parts in which that happens, as the
// offsets where they begin, descending to 0. `on_ready(begin)`, when given, is called when all gradients from
// `begin` on are queued and nothing that follows in this row adds to them: at each of these offsets, and at
// the end of every layer.
std::vector<int64_t> gradient_parts(const DrafterModel&, const ParameterLayout&);
using OnReady = std::function<void(int64_t begin)>;
// `blocks.dhidden` holds the gradient of blocks.hidden; it is consumed, and so are the activations.
template <class T>
void blocks_backward(Drafter<T>&, const Blocks&, int64_t tokens, const Queue&, const OnReady& on_ready = {});
template <class T>
void context_backward(Drafter<T>&, int64_t tokens, const int* position, const Queue&,
                      const OnReady& on_ready = {});

}  // namespace slip
