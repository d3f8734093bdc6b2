#include "decode/decoder.hpp"

namespace slip {

template <class T> Choice Decoder<T>::prefill(std::span<const int32_t> prompt) {
  restart(target_);
  if (drafter_ != nullptr) drafter_->length = 0;
  Choice choice[1];
  while (!prompt.empty()) {
    const auto n = std::min(prompt.size(), static_cast<size_t>(target_.limits.tokens));
    const std::span<Choice> wanted(choice, n == prompt.size() ? 1 : 0);
    target_pass(target_, prompt.first(n), sampling, wanted, queue_);
    commit(static_cast<int64_t>(n));
    prompt = prompt.subspan(n);
  }
  return choice[0];
}

template <class T> void Decoder<T>::propose(int64_t start, std::span<int32_t> block) {
  require(block.size() == 1 || drafter_ != nullptr, "Decoder: a block of drafts without a drafter");
  if (block.size() == 1) return;
  require(drafter_->length == start, "Decoder: the drafter's context does not end at the block");
  slip::propose(*drafter_, target_, block, queue_);
}

template <class T>
void Decoder<T>::verify(int64_t start, std::span<const int32_t> block, std::span<Choice> choices) {
  require(target_.length == start, "Decoder: the target's cache does not end at the block");
  target_pass(target_, block, sampling, choices, queue_);
}

template <class T> void Decoder<T>::commit(int64_t count) {
  accept_tokens(target_, count, queue_);
  if (drafter_ != nullptr) extend_context(*drafter_, target_, count, queue_);
}

template class Decoder<float>;
#if SLIP_HAVE_CUDA
template class Decoder<Bf16>;
#endif

}  // namespace slip
