// Target and drafter with their caches, made for a set of prompts: what `decode`, `generate` and the
// evaluation of a run decode with. Its memory is taken once; a response does not depend on the ones before.
#pragma once
#include <memory>

#include "decode/decoder.hpp"
#include "io/prompts.hpp"

namespace slip {

struct DecodeRule {
  int64_t block = 1;      // tokens verified at once; 1: plain decoding
  int64_t max_new = 256;  // tokens of a response at most
  std::vector<int32_t> stops;
  float temperature = 0;  // 0: greedy
  uint64_t seed = 0;      // of sampling; a prompt's sequence is its document number
};

template <class T> class PromptDecoder {
 public:
  // `weights`: all layers, the norm and the head. `drafter`: null for plain decoding; its weights are the
  // caller's to fill. `longest`: tokens of the longest prompt.
  PromptDecoder(const TargetModel&, TargetWeights<T> weights, const DrafterModel* drafter, int64_t longest,
                const DecodeRule&, Arena&, const Queue&);
  Drafter<T>& drafter() { return drafter_->drafter; }
  Response answer(const Prompt&);
  Response answer_plain(const Prompt&);  // without the drafter: what it must not change

 private:
  Response run(Decoder<T>, const Prompt&, int64_t block);

  DecodeRule rule_;
  int64_t max_position_;
  Queue queue_;
  std::unique_ptr<CachedTarget<T>> target_;
  std::unique_ptr<CachedDrafter<T>> drafter_;
};

}  // namespace slip
