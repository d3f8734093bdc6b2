// `decode`: speculative decoding of a shard's prompts as a server does it, and what the drafter saves.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "apps/commands.hpp"
#include "apps/decode_report.hpp"
#include "apps/with_queue.hpp"
#include "comm/launcher.hpp"
#include "core/log.hpp"
#include "decode/decoder.hpp"
#include "model/synthetic.hpp"

namespace slip {
namespace {

constexpr int64_t kPassTokens = 512;  // of a prompt at a time: bounds the activations
using Clock = std::chrono::steady_clock;

struct Models {
  TargetModel target;
  DrafterModel drafter;
  std::vector<int32_t> stops;
};

double parse_temperature(const std::string& text) {
  double t = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), t);
  if (error != std::errc() || end != text.data() + text.size() || !(t >= 0) || !std::isfinite(t))
    fail_usage(fmt::format("--temperature {}: want a number from 0", text));
  return t;
}

template <class T>
TargetWeights<T> target_weights(const DecodeOptions& o, const Models& m, Arena& arena, const Queue& queue) {
  const TargetParts all{m.target.layers, true, true};
  if (o.synthetic) return synthetic_target<T>(m.target, all, static_cast<uint64_t>(o.seed), arena, queue);
  return load_target<T>(m.target, WeightFolder(o.target), all, arena, queue);
}

template <class T> void fill_drafter(const DecodeOptions& o, Drafter<T>& d, const Queue& queue) {
  const uint64_t seed = static_cast<uint64_t>(o.seed);
  if (o.synthetic || o.untrained) return synthetic_weights(d, seed, queue);
  set_weights(d, published_parameters(d.layout, o.drafter), queue);
}

// All prompts, one after another, with the block of `rule` cut to what the target's positions leave.
template <class T>
std::vector<Response> decode_all(const char* what, Decoder<T>& decoder, const Prompts& prompts,
                                 const Models& m, SpeculateRule rule, double& seconds) {
  std::vector<Response> out;
  const int64_t max_new = rule.max_new;
  const Clock::time_point began = Clock::now();
  Clock::time_point said = began;
  for (const Prompt& p : prompts.list) {
    decoder.sampling.sequence = static_cast<uint64_t>(p.document);
    rule.max_new = std::min(max_new, m.target.max_position - static_cast<int64_t>(p.ids.size()));
    out.push_back(speculate(decoder, std::span<const int32_t>(p.ids), rule));
    const Clock::time_point now = Clock::now();
    if (now - said > std::chrono::seconds(5)) {
      log_info(fmt::format("{}: {} of {} prompts", what, out.size(), prompts.list.size()));
      said = now;
    }
  }
  seconds = std::chrono::duration<double>(Clock::now() - began).count();
  return out;
}

template <class T>
Decoded decode(const DecodeOptions& o, const Models& m, const Prompts& prompts, const Queue& queue) {
  size_t longest = 0;
  for (const Prompt& p : prompts.list) longest = std::max(longest, p.ids.size());
  const int64_t positions =
      std::min(static_cast<int64_t>(longest) + o.max_new, m.target.max_position) + o.block;
  const CacheLimits limits{
      positions, std::max(o.block, std::min<int64_t>(static_cast<int64_t>(longest), kPassTokens)), o.block};
  Arena arena(queue.device);
  CachedTarget<T> target = make_cached_target<T>(m.target, target_weights<T>(o, m, arena, queue),
                                                 m.drafter.taps, limits, arena, queue);
  CachedDrafter<T> drafter = make_cached_drafter<T>(m.drafter, o.block, limits, arena, queue);
  fill_drafter(o, drafter.drafter, queue);
  const Sampling sampling{static_cast<float>(o.temperature), static_cast<uint64_t>(o.seed), 0};
  Decoded out;
  {
    Decoder<T> decoder(target, &drafter, queue);
    decoder.sampling = sampling;
    out.responses = decode_all("decoding", decoder, prompts, m, {o.block, o.max_new, m.stops}, out.seconds);
  }
  if (o.baseline) {
    Decoder<T> decoder(target, nullptr, queue);
    decoder.sampling = sampling;
    out.plain =
        decode_all("without drafter", decoder, prompts, m, {1, o.max_new, m.stops}, out.plain_seconds);
  }
  return out;
}

}  // namespace

int run_decode(const Arguments& arguments) {
  DecodeOptions o;
  std::string temperature = "0", precision, device_text = "auto";
  bool json = false;
  Options options(
      "decode", "--target DIR --drafter DIR --prompts SHARD",
      "Speculative decoding of prompts with key/value caches, as a server does it: the drafter proposes a "
      "block, one call of\n"
      "the target verifies it. Where documents have answers, the prompt is what stands before the first "
      "supervised token.\n"
      "Reports the acceptance length (tokens a call of the target yields) and what it is made of.");
  options.need("target", &o.target, "folder of the target: config.json and safetensors")
      .need("drafter", &o.drafter, "folder of the drafter: config.json and model.safetensors")
      .need("prompts", &o.prompts, "token shard, glob or several separated by commas")
      .number("max-new", &o.max_new, "tokens of a response at most")
      .number("block", &o.block, "tokens verified at once, up to the trained block (0: that)")
      .text("temperature", &temperature,
            "0: greedy; above: the target's tokens are sampled, drafts stay greedy (lossless)")
      .number("seed", &o.seed,
              "of sampling: a token depends on seed, document and position only; and of made-up weights")
      .flag("baseline", &o.baseline, "also decode without the drafter, and compare token by token")
      .number("documents", &o.documents, "only the first so many (0: all)")
      .number("show", &o.show, "print so many responses as text")
      .flag("json", &json, "print JSON, every response included")
      .flag("untrained", &o.untrained,
            "a new drafter from --drafter's config.json alone, as training starts with")
      .flag("synthetic-weights", &o.synthetic,
            "made-up weights for both from their config.json alone, for timing")
      .text("precision", &precision, "fp32 or bf16; bf16 on a GPU unless told")
      .text("device", &device_text, "auto, cpu or cuda");
  if (!options.parse(arguments)) return kOk;
  const LauncherEnv env = launcher_env([](const char* name) -> const char* { return std::getenv(name); });
  if (std::max({env.ompi_size, env.pmi_size, env.slurm_step_tasks}) > 1)
    fail_usage("decode runs on one rank: start it without a launcher");
  const auto at_least = [](const char* name, int64_t value, int64_t least) {
    if (value < least) fail_usage(fmt::format("--{}: {} is below {}", name, value, least));
  };
  at_least("max-new", o.max_new, 1), at_least("block", o.block, 0), at_least("seed", o.seed, 0);
  at_least("documents", o.documents, 0), at_least("show", o.show, 0);
  o.temperature = parse_temperature(temperature);
  const Device device = choose_device_kind(device_text);
  if (precision.empty()) precision = device == Device::cpu ? "fp32" : "bf16";
  const bool bf16 = bf16_asked(precision, device);
  Models m;
  m.target = read_target_config(o.target);
  m.drafter = o.untrained || o.synthetic ? read_new_drafter_config(o.drafter, m.target)
                                         : read_drafter_config(o.drafter);
  check_fit(m.drafter, m.target, o.target);
  if (o.block > m.drafter.block)
    fail_usage(
        fmt::format("--block: {} is above the trained {} ({})", o.block, m.drafter.block, m.drafter.source));
  if (o.block == 0) o.block = m.drafter.block;
  m.stops = stop_tokens(o.target, m.target);
  const Prompts prompts = read_prompts(o.prompts, m.target, o.documents);
  const Decoded d =
      with_queue(device, bf16, [&]<class T>(const Queue& queue) { return decode<T>(o, m, prompts, queue); });
  const std::string kind = fmt::format("{} {}", device == Device::cpu ? "cpu" : "cuda", precision);
  std::cout << (json ? decode_json(o, kind, prompts, d) : decode_text(o, kind, prompts, d));
  return kOk;
}

}  // namespace slip
