#include "apps/answer_options.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "core/check.hpp"

namespace slip {
namespace {

double parse_temperature(const std::string& text) {
  double t = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), t);
  if (error != std::errc() || end != text.data() + text.size() || !(t >= 0) || !std::isfinite(t))
    fail_usage(fmt::format("--temperature {}: want a number from 0", text));
  return t;
}

void at_least(const char* name, int64_t value, int64_t least) {
  if (value < least) fail_usage(fmt::format("--{}: {} is below {}", name, value, least));
}

}  // namespace

void AnswerOptions::add_to(Options& options, bool needs_drafter) {
  options.need("target", &target, "folder of the target: config.json and safetensors");
  if (needs_drafter) {
    options.need("drafter", &drafter, "folder of the drafter: config.json and model.safetensors");
  } else {
    options.text("drafter", &drafter, "folder of a drafter, to decode with");
  }
  options.need("prompts", &prompts, "token shard, glob or several separated by commas")
      .number("max-new", &max_new, "tokens of an answer at most")
      .number("block", &block, "tokens verified at once, up to the trained block (0: that)")
      .text("temperature", &temperature_text_,
            "0: greedy; above: the target's tokens are sampled, drafts stay greedy (lossless)")
      .number("seed", &seed, "of sampling: a token depends on seed, document and position only")
      .number("documents", &documents, "only the first so many prompts (0: all)")
      .text("precision", &precision, "fp32 or bf16; bf16 on a GPU unless told")
      .text("device", &device_text_, "auto, cpu or cuda")
      .flag("share-gpu", &share_gpu, "let ranks share a GPU");
}

void AnswerOptions::settle() {
  at_least("max-new", max_new, 1), at_least("block", block, 0), at_least("seed", seed, 0);
  at_least("documents", documents, 0);
  temperature = parse_temperature(temperature_text_);
  device = choose_device_kind(device_text_);
  if (precision.empty()) precision = device == Device::cpu ? "fp32" : "bf16";
  bf16_asked(precision, device);
}

}  // namespace slip
