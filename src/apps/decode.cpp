// `decode`: speculative decoding of a shard's prompts as a server does it, and what the drafter saves.
#include <fmt/format.h>

#include <iostream>

#include "apps/commands.hpp"
#include "apps/decode_ranks.hpp"
#include "apps/decode_report.hpp"
#include "apps/with_queue.hpp"
#include "comm/collectives.hpp"
#include "launch/prompt_decoder.hpp"
#include "launch/responses.hpp"
#include "model/synthetic.hpp"

namespace slip {
namespace {

constexpr double kTimeout = 600;  // seconds that a rank waits for another's next response

struct Models {
  TargetModel target;
  DrafterModel drafter;
  std::vector<int32_t> stops;
};

template <class T>
TargetWeights<T> target_weights(const DecodeOptions& o, const Models& m, Arena& arena, const Queue& queue) {
  const TargetParts all{m.target.layers, true, true};
  if (o.synthetic)
    return synthetic_target<T>(m.target, all, static_cast<uint64_t>(o.answers.seed), arena, queue);
  return load_target<T>(m.target, WeightFolder(o.target), all, arena, queue);
}

template <class T> void fill_drafter(const DecodeOptions& o, Drafter<T>& d, const Queue& queue) {
  const uint64_t seed = static_cast<uint64_t>(o.answers.seed);
  if (o.synthetic || o.untrained) return synthetic_weights(d, seed, queue);
  set_weights(d, published_parameters(d.layout, o.drafter), queue);
}

template <class T>
Decoded decode(const DecodeOptions& o, const Models& m, const Prompts& prompts, const Comm* comm,
               const Queue& queue) {
  Arena arena(queue.device);
  const DecodeRule rule{o.answers.block, o.answers.max_new, m.stops,
                        static_cast<float>(o.answers.temperature), static_cast<uint64_t>(o.answers.seed)};
  PromptDecoder<T> decoder(m.target, target_weights<T>(o, m, arena, queue), &m.drafter, prompts.longest(),
                           rule, arena, queue);
  fill_drafter(o, decoder.drafter(), queue);
  const auto all = [&](const char* what, double& seconds, auto&& answer) {
    if (comm != nullptr) barrier(*comm, deadline_in(kTimeout), "the models of the other ranks");
    const Clock::time_point began = Clock::now();
    std::vector<Response> out = answer_together(comm, prompts, what, kTimeout, answer);
    seconds = seconds_since(began);
    return out;
  };
  Decoded out;
  out.responses = all("decoding", out.seconds, [&](const Prompt& p) { return decoder.answer(p); });
  if (o.baseline)
    out.plain =
        all("without drafter", out.plain_seconds, [&](const Prompt& p) { return decoder.answer_plain(p); });
  return out;
}

// Everything that is read before memory is taken; refuses what does not fit together.
void read_models(DecodeOptions& o, Models& m, Prompts& prompts) {
  m.target = read_target_config(o.target);
  m.drafter = o.untrained || o.synthetic ? read_new_drafter_config(o.drafter, m.target)
                                         : read_drafter_config(o.drafter, &m.target);
  check_fit(m.drafter, m.target, o.target);
  if (o.answers.block > m.drafter.block)
    fail_usage(fmt::format("--block: {} is above the trained {} ({})", o.answers.block, m.drafter.block,
                           m.drafter.source));
  if (o.answers.block == 0) o.answers.block = m.drafter.block;
  m.stops = stop_tokens(o.target, m.target.vocab);
  prompts = read_prompts(o.prompts, m.target.vocab, m.target.max_position, o.answers.documents);
}

}  // namespace

int run_decode(const Arguments& arguments, int& argc, char**& argv) {
  DecodeOptions o;
  bool json = false;
  Options options(
      "decode", "--target DIR --drafter DIR --prompts SHARD",
      "Speculative decoding of prompts with caches, as a server does it: the drafter proposes a "
      "block, one call of\n"
      "the target verifies it. Where documents have answers, the prompt is what stands before the first "
      "supervised token.\n"
      "Reports the acceptance length (tokens a call of the target yields) and what it is made of. Started "
      "with mpirun the ranks\n"
      "share the prompts; the report is the same.");
  options.need("target", &o.target, "folder of the target: config.json and safetensors")
      .need("drafter", &o.drafter, "folder of the drafter: config.json and model.safetensors")
      .need("prompts", &o.prompts, "token shard, glob or several separated by commas");
  o.answers.add_to(options);
  options.flag("baseline", &o.baseline, "also decode without the drafter, and compare token by token")
      .number("show", &o.show, "print so many responses as text")
      .flag("json", &json, "print JSON, every response included")
      .flag("untrained", &o.untrained,
            "a new drafter from --drafter's config.json alone, as training starts with")
      .flag("synthetic-weights", &o.synthetic,
            "made-up weights for both from their config.json and --seed alone, for timing");
  if (!options.parse(arguments)) return kOk;
  o.answers.settle();
  if (o.show < 0) fail_usage(fmt::format("--show: {} is below 0", o.show));
  const Device device = o.answers.device;
  const std::unique_ptr<MpiSession> mpi = decode_session(argc, argv);
  const Comm* const comm = mpi ? &mpi->world() : nullptr;
  Models m;
  Prompts prompts;
  const GpuChoice gpu = settle_ranks(mpi.get(), o.answers);
  if (gpu.code != kOk) return gpu.code;
  const int refused = on_all_ranks(comm, kTimeout, [&] { read_models(o, m, prompts); });
  if (refused != kOk) return refused;
  if (mpi) o.ranks = mpi->size();
  const Decoded d = with_queue(
      device, o.answers.bf16(),
      [&]<class T>(const Queue& queue) { return decode<T>(o, m, prompts, comm, queue); }, gpu.device);
  if (mpi && mpi->rank() != 0) return kOk;
  const std::string kind = fmt::format("{} {}", device == Device::cpu ? "cpu" : "cuda", o.answers.precision);
  std::cout << (json ? decode_json(o, kind, prompts, d) : decode_text(o, kind, prompts, d));
  return kOk;
}

}  // namespace slip
