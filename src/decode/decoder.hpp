// Target and drafter as `speculate` wants them.
#pragma once
#include "decode/cached_drafter.hpp"

namespace slip {

// Owns neither. Without a drafter (null) only blocks of 1, plain decoding.
template <class T> class Decoder {
 public:
  Decoder(CachedTarget<T>& target, CachedDrafter<T>* drafter, const Queue& queue)
      : target_(target), drafter_(drafter), queue_(queue) {}
  Sampling sampling;

  Choice prefill(std::span<const int32_t> prompt);
  void propose(int64_t start, std::span<int32_t> block);
  void verify(int64_t start, std::span<const int32_t> block, std::span<Choice> choices);
  void commit(int64_t count);

 private:
  CachedTarget<T>& target_;
  CachedDrafter<T>* drafter_;
  Queue queue_;
};

}  // namespace slip
