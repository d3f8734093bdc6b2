#include "launch/inputs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/log.hpp"
#include "io/feature_manifest.hpp"
#include "io/weight_fingerprint.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

double default_gamma(int64_t block) {
  return block == 16 ? 7 : block == 10 ? 5 : block == 8 ? 4 : static_cast<double>(block) / 2;
}

int64_t cut_length(const DataConfig& d) { return d.max_length > 0 ? d.max_length : d.row_tokens; }

int64_t longest_document(const TokenCorpus& c) {
  int64_t longest = 0;
  for (const auto& d : c.documents()) longest = std::max(longest, d.length);
  return longest;
}

TrainerState fresh_state(const RunOptions& o, const RunInputs& in) {
  TrainerState s;
  fields(o.config,
         [&](const char* key, const auto& value, const char*) { s.config[key] = fmt::format("{}", value); });
  const std::vector<TokenCorpus::Document>& documents = in.corpus->documents();
  for (const auto& d : documents) s.tokens += d.length;
  s.documents = static_cast<int64_t>(documents.size());
  s.config[kWeightsKey] = weights_text(in.sources, source_sizes(documents, in.sources.size()));
  s.total_steps = total_steps(documents, in.sources, o.config.data, o.config.train);
  return s;
}

void check_attention(const RunOptions& o, const TargetModel& target) {
  if (o.config.target.attention != "cudnn") return;
  if (o.device == Device::cpu) fail_usage("target.attention: cudnn needs a GPU, and this run is on the CPU");
  const std::string problem = cudnn_attention_problem(target_attention(target));
  if (!problem.empty()) fail_usage(fmt::format("target.attention: cudnn cannot be used: {}", problem));
}

// Finds the checkpoint to continue and refuses what contradicts it.
void choose_start(const RunOptions& o, RunInputs& in) {
  in.state = fresh_state(o, in);
  if (o.synthetic && o.resume != "none")
    fail_usage("--synthetic-weights: such a run is not continued; leave --resume out");
  if (o.resume == "none") {
    if (o.extend > 0) fail_usage("--extend: only a run that is continued can be extended; add --resume auto");
    return;
  }
  const std::string folder = checkpoint_folder(o.config);
  if (o.resume == "auto") {
    in.checkpoint = newest_checkpoint(folder);
    if (!in.checkpoint) {
      if (o.extend > 0) fail_usage(fmt::format("--extend: there is no complete checkpoint in {}", folder));
      return;
    }
  } else {
    const std::string problem = checkpoint_problem(o.resume, false);
    if (!problem.empty())
      fail_input(
          fmt::format("--resume {}: {}; it takes none, auto or a checkpoint's folder", o.resume, problem));
    in.checkpoint = o.resume;
  }
  TrainerState saved = load_trainer_state(*in.checkpoint);
  std::vector<std::string> wrong = resume_contradictions(saved, in.state);
  const DrafterModel model = read_drafter_config(*in.checkpoint + "/drafter");
  if (drafter_config_json(model) != drafter_config_json(in.drafter)) {
    wrong.push_back(
        fmt::format("drafter.config: {} describes another drafter than the checkpoint's drafter/config.json",
                    in.drafter.source));
  }
  if (saved.total_steps != in.state.total_steps && o.extend == 0) {
    wrong.push_back(
        fmt::format("train.steps: the checkpoint's schedule ends after {} steps, the configuration says {} "
                    "(a finished run goes on with --extend STEPS)",
                    saved.total_steps, in.state.total_steps));
  }
  if (!wrong.empty() && !o.allow_changes) {
    fail_usage(fmt::format("{} does not fit this configuration: {} (--allow-changes goes on in spite of it)",
                           *in.checkpoint, fmt::join(wrong, "; ")));
  }
  for (const std::string& w : wrong) log_warn(fmt::format("resuming in spite of it: {}", w));
  const int64_t configured = in.state.total_steps;
  saved.config = in.state.config;
  in.state = saved;
  if (o.extend > 0) {
    in.state.total_steps = saved.total_steps + o.extend;
  } else if (o.allow_changes) {
    in.state.total_steps = configured;
  }
}

// Feature shards that this run can train from: of this target, these taps.
FeatureFiles open_features(const RunOptions& o, const RunInputs& in, const char* key,
                           const std::vector<std::string>& paths) {
  FeatureFiles files(paths);
  const FeatureSpec& s = files.spec();
  std::vector<std::string> wrong;
  const auto compare = [&](const char* what, const auto& shard, const auto& run) {
    if (shard != run) wrong.push_back(fmt::format("{} is {}, this run has {}", what, shard, run));
  };
  compare("taps", s.taps, in.drafter.taps);
  compare("hidden", s.hidden, in.target.hidden);
  compare("architecture", s.architecture, in.target.model_type);
  compare("target_fingerprint", s.target_fingerprint, target_fingerprint(o));
  compare("rope_theta", s.rope_theta, in.target.rope.theta);
  compare("final_norm_applied", s.final_norm_applied, int64_t{0});
  if (!wrong.empty())
    fail_input(fmt::format("{}: {}: {}", key, files.shards().front().info().path, fmt::join(wrong, "; ")));
  return files;
}

std::vector<std::string> paths_of(const std::vector<Source>& sources) {
  std::vector<std::string> out;
  for (const Source& s : sources) out.insert(out.end(), s.paths.begin(), s.paths.end());
  return out;
}

// Held-out documents and, where they are on disk, their features.
void open_held_out(const RunOptions& o, RunInputs& in) {
  const EvalConfig& c = o.config.eval;
  const int64_t cut = cut_length(o.config.data);
  if (!c.tokens.empty()) {
    const std::vector<Source> sources = expand_sources("eval.tokens", c.tokens, expand_globs);
    if (weighted(sources))
      fail_usage("eval.tokens: held-out documents are evaluated once each; leave the weights out");
    in.eval.emplace(paths_of(sources), cut);
  }
  if (c.features.empty()) return;
  const std::vector<std::string> paths = expand_feature_paths(c.features);
  in.eval_features.emplace(open_features(o, in, "eval.features", paths));
  if (!in.eval) in.eval.emplace(paths, cut);
}

// Documents and, where they are on disk, their features.
void open_data(const RunOptions& o, RunInputs& in) {
  const Config& c = o.config;
  in.offline = c.data.tokens.empty() && c.eval.prompts.empty();
  const bool shards_only = c.data.tokens.empty();
  const char* key = shards_only ? "data.features" : "data.tokens";
  in.sources = shards_only ? expand_sources(key, c.data.features, expand_feature_paths)
                           : expand_sources(key, c.data.tokens, expand_globs);
  const std::vector<std::string> paths = paths_of(in.sources);
  std::vector<int32_t> source_of_path;
  for (size_t s = 0; s < in.sources.size(); ++s)
    source_of_path.insert(source_of_path.end(), in.sources[s].paths.size(), static_cast<int32_t>(s));
  if (shards_only) in.features.emplace(open_features(o, in, key, paths));
  in.corpus.emplace(paths, cut_length(c.data), source_of_path);
  check_weights(key, in.sources, source_sizes(in.corpus->documents(), in.sources.size()));
  if (!shards_only && !c.data.features.empty()) {
    const std::vector<Source> shards = expand_sources("data.features", c.data.features, expand_feature_paths);
    if (weighted(shards))
      fail_usage("data.features: weights belong to data.tokens where both are set, here there are two lists");
    in.features.emplace(open_features(o, in, "data.features", paths_of(shards)));
  }
  open_held_out(o, in);
  if (!in.features) return;
  const std::vector<Row> rows = training_rows(in, c.data, 0);
  int64_t there = 0;
  for (const Row& row : rows) {
    there += std::all_of(row.documents.begin(), row.documents.end(),
                         [&](const auto& d) { return in.features->find(d.id).has_value(); });
  }
  in.rows_on_disk = rows.empty() ? 1 : static_cast<double>(there) / static_cast<double>(rows.size());
  if (!c.data.tokens.empty())
    log_info(fmt::format("{} of {} rows of the first epoch are read from {}, the others are computed", there,
                         rows.size(), c.data.features));
}

}  // namespace

std::string target_fingerprint(const RunOptions& o) {
  if (o.synthetic) return fmt::format("synthetic-{}", o.config.data.seed);
  return weight_fingerprint(WeightFolder(o.config.target.path));
}

TargetParts target_parts(const RunInputs& in, bool head) {
  if (in.prompts) return {in.target.layers, true, true};
  if (in.offline) return {0, head};  // features come from disk
  return {in.last_tap + 1, head};
}

std::string checkpoint_folder(const Config& c) {
  return c.checkpoint.dir.empty() ? c.log.dir + "/checkpoints" : c.checkpoint.dir;
}

RunInputs read_inputs(const RunOptions& o) {
  const Config& c = o.config;
  RunInputs in;
  in.target = read_target_config(c.target.path);
  in.drafter = c.drafter.config.empty() ? read_drafter_config(c.drafter.init_from, &in.target)
                                        : read_new_drafter_config(c.drafter.config, in.target);
  check_fit(in.drafter, in.target, c.target.path);
  check_attention(o, in.target);
  if (in.drafter.block > kMaxBlock)
    fail_usage(fmt::format("{}: block_size {} is above the supported {}", in.drafter.source, in.drafter.block,
                           kMaxBlock));
  open_data(o, in);
  for (const TokenCorpus* corpus : {&*in.corpus, in.eval ? &*in.eval : nullptr}) {
    if (corpus == nullptr) continue;
    corpus->require_answers();
    in.longest = std::max(in.longest, longest_document(*corpus));
    for (const TokenShardInfo& s : corpus->shards()) {
      if (s.vocab_size != in.target.vocab) {
        fail_usage(fmt::format("{}: vocab_size {}, the target {} has {} rows", s.path, s.vocab_size,
                               c.target.path, in.target.vocab));
      }
    }
  }
  if (in.longest > in.target.max_position) {
    fail_usage(fmt::format(
        "a document has {} tokens, the target {} takes {} (max_position_embeddings): set data.max_length",
        in.longest, c.target.path, in.target.max_position));
  }
  in.rule.kind = c.train.loss == "dpace" ? LossKind::dpace : LossKind::decay;
  in.rule.gamma = static_cast<float>(c.train.gamma >= 0 ? c.train.gamma : default_gamma(in.drafter.block));
  in.rule.alpha = static_cast<float>(c.train.alpha);
  in.label_mask = c.train.label_mask == "prefix" ? LabelMask::prefix : LabelMask::pointwise;
  in.last_tap = *std::max_element(in.drafter.taps.begin(), in.drafter.taps.end());
  int64_t longest = in.longest;
  if (!c.eval.prompts.empty()) {
    in.prompts.emplace(read_prompts(c.eval.prompts, in.target.vocab, in.target.max_position, 0));
    in.stops = stop_tokens(c.target.path, in.target.vocab);
    // What is decoded is run through the training forward again, cut to a row.
    longest = std::max(longest, std::min(c.data.row_tokens, in.prompts->longest() + c.eval.max_new));
  }
  in.limits = {c.data.row_tokens, std::min(c.train.blocks_per_pass, c.data.row_tokens),
               longest + in.drafter.block, c.train.precision == "fp8",
               c.train.precision == "fp8" && fp8_suits_head(in.drafter)};
  if (in.limits.fp8 && o.device == Device::cuda) check_fp8_sizes(in.drafter, "train.precision=fp8");
  if (in.limits.fp8 && !in.limits.fp8_head)
    log_info(fmt::format("train.precision=fp8: the head, {} x {}, stays in the working type (kernels/FP8.md)",
                         in.drafter.vocab, in.drafter.hidden));
  choose_start(o, in);
  return in;
}

void check_everything(const RunOptions& o, const RunInputs& in) {
  const Config& c = o.config;
  if (o.resume == "none" && fs::exists(c.log.dir + "/metrics.jsonl")) {
    fail_usage(
        fmt::format("log.dir: {} already holds a run; name another folder, or continue it with --resume auto",
                    c.log.dir));
  }
  if (fs::exists(c.log.dir) && !fs::is_directory(c.log.dir))
    fail_usage(fmt::format("log.dir: {} is not a folder", c.log.dir));
  in.corpus->validate(in.target.vocab);
  if (in.eval) in.eval->validate(in.target.vocab);
  if (!o.synthetic) check_target_tensors(in.target, WeightFolder(c.target.path), target_parts(in, true));
  if (!c.drafter.init_from.empty()) check_published(in.drafter, c.drafter.init_from);
  if (in.checkpoint) {
    const std::string problem = checkpoint_problem(*in.checkpoint, true);
    if (!problem.empty()) fail_input(fmt::format("{}: {}", *in.checkpoint, problem));
  }
}

std::vector<Row> training_rows(const RunInputs& in, const DataConfig& d, int64_t epoch) {
  return epoch_rows(drawn(in.corpus->documents(), in.sources, d.seed, epoch), d.row_tokens, d.shuffle, d.seed,
                    epoch);
}

PlanCosts plan_costs(const RunOptions& o, const RunInputs& in) {
  const std::vector<Row> rows = training_rows(in, o.config.data, 0);
  // The mean row of the first epoch. Anchors are bounded by the tokens of a document; masks are not read for
  // this.
  double tokens = 0, documents = 0, blocks = 0;
  EpochSize epoch;
  epoch.rows = static_cast<int64_t>(rows.size());
  epoch.steps = steps_of_epoch(epoch.rows, o.config.train.rows_per_step);
  const std::vector<SourceSize> sizes = source_sizes(in.corpus->documents(), in.sources.size());
  for (size_t s = 0; s < in.sources.size(); ++s)
    epoch.sources.push_back({in.sources[s].pattern, in.sources[s].weight, sizes[s], {}});
  for (const Row& row : rows) {
    for (const auto& doc : row.documents) {
      for (SourceSize* size : {&epoch.drawn, &epoch.sources[static_cast<size_t>(doc.source)].drawn}) {
        ++size->documents;
        size->tokens += doc.length;
      }
    }
    tokens += static_cast<double>(row.tokens);
    documents += static_cast<double>(row.documents.size());
    for (const auto& doc : row.documents)
      blocks += static_cast<double>(std::min(o.config.train.anchors, doc.length - 1));
  }
  const double n = static_cast<double>(rows.size());
  const RowShape shape{std::llround(tokens / n), std::max<int64_t>(1, std::llround(documents / n)),
                       std::llround(blocks / n)};
  PlanCosts costs;
  costs.offline = in.offline;
  costs.target_flops = target_row_flops(in.target, in.last_tap, shape) * (1 - in.rows_on_disk);
  costs.drafter_flops = drafter_row_flops(in.drafter, shape);
  constexpr double kFp8Speed = 1.45;  // kernels/FP8.md
  if (in.limits.fp8 && o.device == Device::cuda) costs.drafter_speed = kFp8Speed;
  costs.row_bytes = shape.tokens * static_cast<int64_t>(in.drafter.taps.size()) * in.target.hidden * 2;
  costs.rows_per_step = o.config.train.rows_per_step;
  costs.epoch = std::move(epoch);
  return costs;
}

}  // namespace slip
