#include "launch/prompt_decoder.hpp"

#include <algorithm>

namespace slip {
namespace {

constexpr int64_t kPassTokens = 512;  // of a prompt at a time: bounds the activations

CacheLimits cache_limits(int64_t longest, const DecodeRule& rule, int64_t max_position) {
  const int64_t positions = std::min(longest + rule.max_new, max_position) + rule.block;
  return {positions, std::max(rule.block, std::min(longest, kPassTokens)), rule.block};
}

}  // namespace

template <class T>
PromptDecoder<T>::PromptDecoder(const TargetModel& target, TargetWeights<T> weights,
                                const DrafterModel* drafter, int64_t longest, const DecodeRule& rule,
                                Arena& arena, const Queue& queue)
    : rule_(rule), max_position_(target.max_position), queue_(queue) {
  require(drafter != nullptr || rule.block == 1, "PromptDecoder: a block of drafts without a drafter");
  const CacheLimits limits = cache_limits(longest, rule, max_position_);
  const std::vector<int64_t> taps = drafter != nullptr ? drafter->taps : std::vector<int64_t>();
  target_ = std::make_unique<CachedTarget<T>>(
      make_cached_target<T>(target, std::move(weights), taps, limits, arena, queue));
  if (drafter == nullptr) return;
  drafter_ =
      std::make_unique<CachedDrafter<T>>(make_cached_drafter<T>(*drafter, rule.block, limits, arena, queue));
}

template <class T> Response PromptDecoder<T>::run(Decoder<T> decoder, const Prompt& prompt, int64_t block) {
  decoder.sampling = {rule_.temperature, rule_.seed, static_cast<uint64_t>(prompt.document)};
  const int64_t room = max_position_ - static_cast<int64_t>(prompt.ids.size());
  const SpeculateRule rule{block, std::min(rule_.max_new, room), rule_.stops};
  return speculate(decoder, std::span<const int32_t>(prompt.ids), rule);
}

template <class T> Response PromptDecoder<T>::answer(const Prompt& prompt) {
  return run(Decoder<T>(*target_, drafter_.get(), queue_), prompt, rule_.block);
}
template <class T> Response PromptDecoder<T>::answer_plain(const Prompt& prompt) {
  return run(Decoder<T>(*target_, nullptr, queue_), prompt, 1);
}

template class PromptDecoder<float>;
#if SLIP_HAVE_CUDA
template class PromptDecoder<Bf16>;
#endif

}  // namespace slip
