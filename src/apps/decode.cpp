// `decode`: speculative decoding of a shard's prompts as a server does it, and what the drafter saves.
#include <fmt/format.h>

#include <iostream>

#include "apps/answer_models.hpp"
#include "apps/commands.hpp"
#include "apps/decode_ranks.hpp"
#include "apps/decode_report.hpp"
#include "apps/with_queue.hpp"
#include "comm/collectives.hpp"
#include "launch/responses.hpp"

namespace slip {
namespace {

template <class T>
Decoded decode(const DecodeOptions& o, const AnswerModels& m, const Comm* comm, const GpuChoice& gpu,
               const Queue& queue) {
  Arena arena(queue.device);
  const auto decoder = load_decoder<T>(o.answers, m, comm, gpu, true, arena, queue);
  const auto all = [&](const char* what, double& seconds, auto&& answer) {
    if (comm != nullptr) barrier(*comm, deadline_in(kAnswerTimeout), "the models of the other ranks");
    const Clock::time_point began = Clock::now();
    std::vector<Response> out = answer_together(comm, m.prompts, what, kAnswerTimeout, answer);
    seconds = seconds_since(began);
    return out;
  };
  Decoded out;
  out.responses = all("decoding", out.seconds, [&](const Prompt& p) { return decoder->answer(p); });
  if (o.baseline)
    out.plain =
        all("without drafter", out.plain_seconds, [&](const Prompt& p) { return decoder->answer_plain(p); });
  return out;
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
  o.answers.add_to(options, true);
  options.flag("baseline", &o.baseline, "also decode without the drafter, and compare token by token")
      .number("show", &o.show, "print so many responses as text")
      .flag("json", &json, "print JSON, every response included")
      .flag("untrained", &o.answers.untrained,
            "a new drafter from --drafter's config.json alone, as training starts with")
      .flag("synthetic-weights", &o.answers.synthetic,
            "made-up weights for both from their config.json and --seed alone, for timing");
  if (!options.parse(arguments)) return kOk;
  if (o.answers.drafter.empty()) fail_usage("--drafter: names no folder");
  if (o.show < 0) fail_usage(fmt::format("--show: {} is below 0", o.show));
  const std::unique_ptr<MpiSession> mpi = decode_session(argc, argv);
  const Comm* const comm = mpi ? &mpi->world() : nullptr;
  AnswerModels m;
  const GpuChoice gpu = settle_ranks(mpi.get(), o.answers);
  if (gpu.code != kOk) return gpu.code;
  const int refused = on_all_ranks(comm, kAnswerTimeout, [&] { m = read_answer_models(o.answers); });
  if (refused != kOk) return refused;
  const Device device = o.answers.device;
  if (mpi) o.ranks = mpi->size();
  const Decoded d = with_queue(
      device, o.answers.bf16(),
      [&]<class T>(const Queue& queue) { return decode<T>(o, m, comm, gpu, queue); }, gpu.device);
  if (mpi && mpi->rank() != 0) return kOk;
  const std::string kind = fmt::format("{} {}", device == Device::cpu ? "cpu" : "cuda", o.answers.precision);
  std::cout << (json ? decode_json(o, kind, m.prompts, d) : decode_text(o, kind, m.prompts, d));
  return kOk;
}

}  // namespace slip
