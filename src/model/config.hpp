// Architectures as their config.json states them. Reading refuses, by key and value, whatever changes the
// mathematics and is not supported (target-models.md section 3 lists the rules); no weight file is opened
// here.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace slip {

struct RopeConfig {
  std::string type = "default";  // default | llama3
  double theta = 0;
  double partial = 1;  // share of the head, from its first component, that rotates
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_max_position = 0;
};

// A gated delta net layer (target-models.md 6): causal depthwise convolution, delta rule, gated norm.
struct DeltaNetConfig {
  int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;  // dims of a head
  int64_t taps = 0;                                                    // of the convolution
  bool sigmoid_gate = false;                                           // of the gated norm; false: SiLU
  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
  int64_t channels() const { return 2 * keys() + values(); }  // of the convolution: q | k | v
};

struct TargetModel {
  std::string model_type;  // qwen3 | llama | qwen3_5
  int64_t hidden = 0, intermediate = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
  float eps = 0;
  bool qk_norm = false;         // qwen3, qwen3_5
  bool centred_norms = false;   // qwen3_5: input, post, q, k and final norm multiply by 1 + weight
  bool attention_gate = false;  // qwen3_5: q_proj also gives, head by head, a sigmoid gate of the output
  std::vector<bool> linear;     // per layer: gated delta net in place of attention; empty: none
  DeltaNetConfig delta;         // of those layers
  bool tied = false;
  int64_t max_position = 0;
  RopeConfig rope;
  bool is_linear(int64_t layer) const { return !linear.empty() && linear[static_cast<size_t>(layer)]; }
};
TargetModel read_target_config(const std::string& folder);  // <folder>/config.json

struct DrafterModel {
  int64_t hidden = 0, intermediate = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
  int64_t block = 0, mask_token = -1, target_layers = 0;
  std::vector<int64_t> taps;      // 0-based: the residual stream after that layer
  std::vector<bool> sliding;      // per layer
  std::vector<bool> causal;       // per layer, inside the block: default sliding -> causal, full -> not
  bool causal_is_default = true;  // false: config.json said is_causal (or dflash_config.causal)
  int64_t window = 0;             // of sliding layers
  float eps = 1e-6f;
  double initializer_range = 0.02;
  int64_t max_position = 0;
  RopeConfig rope;                                     // default type only
  std::string bos_token = "null", eos_token = "null";  // JSON as in the file: a number, a list or null
  std::string source;                                  // path, for messages
};
// A config.json or a folder that holds one; also as speculators and TorchSpec write it. `target`: for the
// number of its layers, which speculators does not write down.
DrafterModel read_drafter_config(const std::string& path, const TargetModel* target = nullptr);
// For new weights: target_layer_ids and num_target_layers may be absent and come from the target
// (default_taps, one tap per draft layer).
DrafterModel read_new_drafter_config(const std::string& path, const TargetModel&);
std::string drafter_config_json(const DrafterModel&);  // what is published: dflash.md 1.5
// Both fit each other: hidden, vocab rows, taps in range, mask id < vocab, target_layers. All contradictions,
// each with both values, in one fail_usage line. Tap N-1 is a warning.
void check_fit(const DrafterModel&, const TargetModel&, const std::string& target_path);
// Default taps when a new config names none: n==1 -> T/2, else round-half-even(1 + i (T-4)/(n-1)). fail_usage
// when that gives a layer twice or one that is not there.
std::vector<int64_t> default_taps(int64_t target_layers, int64_t count);
// (R/2) inverse frequencies of the R = head_dim * partial components that rotate
std::vector<double> rope_frequencies(const RopeConfig&, int64_t head_dim);

// Published tensors in file order of dflash.md 1.1: name and shape. 11 a layer + 3.
struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
};
std::vector<NamedShape> drafter_tensors(const DrafterModel&);
int64_t parameter_count(const DrafterModel&);

}  // namespace slip
