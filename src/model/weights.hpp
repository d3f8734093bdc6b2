// Reading weights into the working type of a model, and the drafter's parameters as one flat buffer.
#pragma once
#include <string>
#include <vector>

#include "device/arena.hpp"
#include "io/safetensors.hpp"
#include "model/config.hpp"
#include "model/weight_stream.hpp"

namespace slip {

// The embedding's name in a checkpoint: with or without the wrapper of multimodal files; fails with the names
// at hand.
std::string embedding_name(const WeightFolder&);

// What the names of the layers and of the final norm begin with: "model.", or "model.language_model." in
// multimodal files.
std::string layer_prefix(const WeightFolder&);

// Copies tensors of a folder to where a queue's memory is, converted to T. What the file has in T already is
// noted, and streamed by `finish`; the rest goes through a host buffer at once.
template <class T> class WeightReader {
 public:
  // dry: nothing is copied, for an arena that only measures. `hooks` outlive it.
  WeightReader(const WeightFolder& folder, const Queue& queue, bool dry, const LoadHooks& hooks = {})
      : folder_(folder), queue_(queue), dry_(dry), hooks_(hooks) {}
  void read(const std::string& name, View2<T> to);  // contiguous, as many elements as the tensor has
  // A matrix whose rows are, head by head, `rows` rows for `first` and then as many for `second`.
  void read_halves(const std::string& name, int64_t rows, View2<T> first, View2<T> second);
  void finish();  // all tensors are in place after it

 private:
  // Elements [first, first + count) of the tensor; they are `count` elements at `to`.
  void place(const TensorInfo&, int64_t first, int64_t count, T* to);

  const WeightFolder& folder_;
  const Queue& queue_;
  bool dry_;
  LoadHooks hooks_;
  std::vector<WeightPiece> pieces_;
  std::vector<WeightPiece> placed_;        // converted already: only to be passed on
  std::vector<T> host_;                    // of the tensor that was converted last
  const TensorInfo* converted_ = nullptr;  // that tensor
};

// Where each published tensor lies in the flat buffers of weights, gradients, masters and moments. Keys and
// values of all layers lie together, so that the context's projections are one product; gate and up likewise.
// The backward pass completes gradients from the end of the buffer to its begin (drafter.hpp,
// gradient_parts).
struct ParameterLayout {
  struct Entry {
    std::string name;  // published name
    std::vector<int64_t> shape;
    int64_t offset, count;
  };
  std::vector<Entry> entries;  // in memory order
  int64_t count = 0;           // elements in all
  const Entry& at(const std::string& name) const;
};
ParameterLayout parameter_layout(const DrafterModel&);

// Views into a flat buffer: weights (T = working type) or gradients (T = Acc).
template <class T> struct DrafterViews {
  struct Layer {
    T *input_norm, *q_norm, *k_norm, *post_norm;
    View2<T> q, kv, o, gate_up, down;  // kv: (2*kv_heads*d, H), keys then values, a part of kv_all
  };
  View2<T> fc;  // (H, K*H)
  T *hidden_norm, *norm;
  View2<T> kv_all;  // (layers*2*kv_heads*d, H)
  std::vector<Layer> layers;
};
template <class T> DrafterViews<T> drafter_views(const DrafterModel&, const ParameterLayout&, T* flat);

// New weights, rounded to bf16 (the masters start from what is published): matrices N(0, initializer_range^2)
// by counter-based numbers of (seed, name, index), norms 1 (dflash.md 1.7).
std::vector<float> initial_parameters(const DrafterModel&, const ParameterLayout&, uint64_t seed);
// A published tensor by its name, or as other trainers call it: with "model." in front, or TorchSpec's
// context_proj, context_norm and final_norm. Fails as WeightFolder::need does.
const TensorInfo& need_published(const WeightFolder&, const std::string& name,
                                 const std::vector<int64_t>& shape);
// All tensors of a published drafter folder are there, by name and shape; fails as need_published does.
void check_published(const DrafterModel&, const std::string& folder);
// A published drafter folder (warm start), names and shapes checked.
std::vector<float> published_parameters(const ParameterLayout&, const std::string& folder);

}  // namespace slip
