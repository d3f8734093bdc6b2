#include "core/config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/nearest.hpp"

namespace slip {
namespace {

std::string text(const std::string& v) { return v; }
std::string text(bool v) { return v ? "true" : "false"; }
template <class N> std::string text(N v) { return fmt::format("{}", v); }

}  // namespace

std::string print_config(const Config& config) {
  std::string out, section;
  fields(config, [&](const char* key, const auto& value, const char* help) {
    const std::string_view k = key;
    const size_t dot = k.find('.');
    if (k.substr(0, dot) != section) {
      section = k.substr(0, dot);
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    }
    out += fmt::format("# {}\n{} = {}\n", help, k.substr(dot + 1), text(value));
  });
  return out;
}

std::string nearest_key(const std::string& unknown) {
  std::string best;
  int64_t distance = INT64_MAX;
  const Config config;
  const bool bare = unknown.find('.') == std::string::npos;  // "lr": its section was forgotten
  fields(config, [&](const char* key, const auto&, const char*) {
    const char* const said = bare ? std::strchr(key, '.') + 1 : key;
    const int64_t d = edit_distance(unknown, said);
    if (d < distance) distance = d, best = key;
  });
  return best;
}

std::vector<std::string> contradictions(const Config& c, ConfigUse use) {
  std::vector<std::string> out;
  const auto refuse = [&](bool bad, const std::string& message) {
    if (bad) out.push_back(message);
  };
  const auto one_of = [&](const char* key, const std::string& v,
                          std::initializer_list<std::string_view> allowed) {
    if (std::find(allowed.begin(), allowed.end(), v) == allowed.end()) {
      out.push_back(fmt::format("{}: '{}' is not one of {}", key, v, fmt::join(allowed, ", ")));
    }
  };
  const auto at_least = [&](const char* key, auto v, auto low) {
    if (!(v >= low)) out.push_back(fmt::format("{}: {} is below {}", key, v, low));
  };
  const auto within = [&](const char* key, double v, double low, double high) {
    if (!(v >= low && v <= high))
      out.push_back(fmt::format("{}: {} is not between {} and {}", key, v, low, high));
  };
  const auto role = [&](const char* key, const std::string& v) {
    const bool number = !v.empty() && v.size() < 7 && v.find_first_not_of("0123456789") == std::string::npos;
    if (v != "auto" && !number) out.push_back(fmt::format("{}: '{}' is neither a number nor auto", key, v));
  };
  one_of("target.attention", c.target.attention, {"native", "cudnn"});
  one_of("train.loss", c.train.loss, {"decay", "dpace"});
  one_of("train.label_mask", c.train.label_mask, {"prefix", "pointwise"});
  one_of("train.schedule", c.train.schedule, {"cosine", "wsd", "linear", "constant"});
  one_of("train.precision", c.train.precision, {"bf16", "fp8", "fp32"});
  refuse(c.target.attention == "cudnn" && c.train.precision == "fp32",
         "target.attention: cudnn computes in bf16, train.precision is fp32");
  refuse(c.target.path.empty(), "target.path: not set");
  refuse(c.data.tokens.empty() && c.data.features.empty(),
         "data.tokens: not set (and neither is data.features)");
  refuse(!c.eval.tokens.empty() && !c.eval.features.empty(),
         "eval.tokens and eval.features: only one of them can be set");
  const bool train = use == ConfigUse::train;
  refuse(train && c.data.tokens.empty() && !c.eval.tokens.empty(),
         "eval.tokens: without data.tokens no rank runs the target; set eval.features");
  refuse(train && !c.data.tokens.empty() && !c.eval.features.empty(),
         "eval.features: for runs without data.tokens; set eval.tokens");
  refuse(train && c.data.tokens.empty() && !c.dump.dir.empty(),
         "dump.dir: without data.tokens no rank runs the target, there is nothing to dump");
  refuse(!train && c.data.tokens.empty(), "data.tokens: not set, there is nothing to dump");
  refuse(!train && c.dump.dir.empty(), "dump.dir: not set");
  at_least("data.reader_threads", c.data.reader_threads, int64_t{1});
  at_least("dump.max_bytes", c.dump.max_bytes, int64_t{0});
  at_least("dump.shard_bytes", c.dump.shard_bytes, int64_t{1} << 16);
  at_least("dump.queue_rows", c.dump.queue_rows, int64_t{1});
  one_of("dump.span", c.dump.span, {"all", "supervised"});
  one_of("dump.bf16", c.dump.bf16, {"float", "uint16"});
  one_of("dump.compress", c.dump.compress, {"none", "deflate"});
  refuse(c.drafter.config.empty() && c.drafter.init_from.empty(),
         "drafter.config: not set (and neither is drafter.init_from)");
  refuse(!c.drafter.config.empty() && !c.drafter.init_from.empty(),
         "drafter.config and drafter.init_from: only one of them can be set");
  refuse(train && c.log.dir.empty(), "log.dir: not set");
  refuse(train && c.train.steps == 0 && c.data.epochs == 0,
         "train.steps and data.epochs: both 0, the run would never end");
  at_least("data.max_length", c.data.max_length, int64_t{0});
  at_least("data.row_tokens", c.data.row_tokens, int64_t{2});
  refuse(c.data.max_length > c.data.row_tokens,
         fmt::format("data.max_length: {} is more than data.row_tokens = {}", c.data.max_length,
                     c.data.row_tokens));
  at_least("data.epochs", c.data.epochs, int64_t{0});
  role("roles.targets", c.roles.targets);
  role("roles.drafters", c.roles.drafters);
  at_least("roles.queue_rows", c.roles.queue_rows, int64_t{1});
  at_least("train.steps", c.train.steps, int64_t{0});
  at_least("train.rows_per_step", c.train.rows_per_step, int64_t{1});
  at_least("train.anchors", c.train.anchors, int64_t{1});
  at_least("train.blocks_per_pass", c.train.blocks_per_pass, int64_t{1});
  refuse(!(c.train.gamma >= 0 || c.train.gamma == -1),
         fmt::format("train.gamma: {} is negative", c.train.gamma));
  within("train.alpha", c.train.alpha, 0, 1);
  refuse(!(c.train.lr > 0 && c.train.lr < 10),
         fmt::format("train.lr: {} is not between 0 and 10", c.train.lr));
  within("train.min_lr_ratio", c.train.min_lr_ratio, 0, 1);
  within("train.warmup_ratio", c.train.warmup_ratio, 0, 1);
  within("train.beta1", c.train.beta1, 0, 0.999999);
  within("train.beta2", c.train.beta2, 0, 0.9999999);
  within("train.weight_decay", c.train.weight_decay, 0, 10);
  at_least("train.clip", c.train.clip, 0.0);
  at_least("train.max_minutes", c.train.max_minutes, 0.0);
  at_least("train.max_bad_steps", c.train.max_bad_steps, int64_t{0});
  at_least("checkpoint.every_steps", c.checkpoint.every_steps, int64_t{0});
  at_least("checkpoint.every_minutes", c.checkpoint.every_minutes, 0.0);
  at_least("checkpoint.keep", c.checkpoint.keep, int64_t{0});
  at_least("checkpoint.keep_every", c.checkpoint.keep_every, int64_t{0});
  at_least("checkpoint.retries", c.checkpoint.retries, int64_t{0});
  at_least("checkpoint.retry_s", c.checkpoint.retry_s, 0.0);
  at_least("checkpoint.keep_best", c.checkpoint.keep_best, int64_t{0});
  refuse(c.checkpoint.keep_best > 0 && c.eval.prompts.empty(),
         "checkpoint.keep_best: needs eval.prompts, whose decoded acceptance says which checkpoint is best");
  at_least("eval.max_new", c.eval.max_new, int64_t{1});
  at_least("eval.anchors", c.eval.anchors, int64_t{1});
  at_least("eval.every_steps", c.eval.every_steps, int64_t{0});
  at_least("log.every_steps", c.log.every_steps, int64_t{1});
  refuse(!(c.comm.timeout_s >= 1), fmt::format("comm.timeout_s: {} is below 1", c.comm.timeout_s));
  at_least("comm.heartbeat_s", c.comm.heartbeat_s, 0.0);
  refuse(!(c.comm.dead_after_s >= 3 * c.comm.heartbeat_s && c.comm.dead_after_s >= 1),
         fmt::format("comm.dead_after_s: {} is below 1 or below three times comm.heartbeat_s = {}",
                     c.comm.dead_after_s, c.comm.heartbeat_s));
  for (const auto& [key, blocks] : {std::pair("comm.sum_blocks", c.comm.sum_blocks),
                                    std::pair("comm.feature_blocks", c.comm.feature_blocks)})
    refuse(blocks < 0 || blocks > 64, fmt::format("{}: {} is not 0..64", key, blocks));
  return out;
}

}  // namespace slip
