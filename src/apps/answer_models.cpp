#include "apps/answer_models.hpp"

#include <fmt/format.h>

#include "launch/frozen_weights.hpp"
#include "model/synthetic.hpp"

namespace slip {
namespace {

TargetParts all_of(const TargetModel& m) { return {m.layers, true, true}; }

}  // namespace

AnswerModels read_answer_models(AnswerOptions& o) {
  AnswerModels m;
  m.target = read_target_config(o.target);
  if (!o.synthetic) check_target_tensors(m.target, WeightFolder(o.target), all_of(m.target));
  if (!o.drafter.empty()) {
    const bool made = o.untrained || o.synthetic;
    m.drafter =
        made ? read_new_drafter_config(o.drafter, m.target) : read_drafter_config(o.drafter, &m.target);
    check_fit(*m.drafter, m.target, o.target);
    if (!made) check_published(*m.drafter, o.drafter);
  }
  const int64_t most = m.drafter ? m.drafter->block : 1;
  if (o.block > most) {
    fail_usage(fmt::format("--block: {} is above {}", o.block,
                           m.drafter ? fmt::format("the trained {} ({})", most, m.drafter->source)
                                     : "1, what there is without --drafter"));
  }
  if (o.block == 0) o.block = most;
  m.stops = stop_tokens(o.target, m.target.vocab);
  m.prompts = read_prompts(o.prompts, m.target.vocab, m.target.max_position, o.documents);
  return m;
}

template <class T>
std::unique_ptr<PromptDecoder<T>> load_decoder(const AnswerOptions& o, const AnswerModels& m,
                                               const Comm* comm, const GpuChoice& gpu, bool joins,
                                               Arena& arena, const Queue& queue) {
  const uint64_t seed = static_cast<uint64_t>(o.seed);
  const NodeLoad load(o.synthetic ? nullptr : comm, joins ? 0 : -1, gpu.shared, kAnswerTimeout, nullptr,
                      queue);
  if (!joins) return nullptr;
  const DecodeRule rule{o.block, o.max_new, m.stops, static_cast<float>(o.temperature), seed};
  const TargetParts parts = all_of(m.target);
  TargetWeights<T> weights =
      o.synthetic ? synthetic_target<T>(m.target, parts, seed, arena, queue)
                  : load_target<T>(m.target, WeightFolder(o.target), parts, arena, queue, load.hooks());
  auto decoder =
      std::make_unique<PromptDecoder<T>>(m.target, std::move(weights), m.drafter ? &*m.drafter : nullptr,
                                         m.prompts.longest(), rule, arena, queue);
  if (m.drafter && (o.untrained || o.synthetic)) {
    synthetic_weights(decoder->drafter(), seed, queue);
  } else if (m.drafter) {
    load_drafter(decoder->drafter(), o.drafter, load, queue);
  }
  load.report();
  return decoder;
}

template std::unique_ptr<PromptDecoder<float>> load_decoder(const AnswerOptions&, const AnswerModels&,
                                                            const Comm*, const GpuChoice&, bool, Arena&,
                                                            const Queue&);
#if SLIP_HAVE_CUDA
template std::unique_ptr<PromptDecoder<Bf16>> load_decoder(const AnswerOptions&, const AnswerModels&,
                                                           const Comm*, const GpuChoice&, bool, Arena&,
                                                           const Queue&);
#endif

}  // namespace slip
