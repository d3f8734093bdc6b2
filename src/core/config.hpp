// The run configuration: structs of plain fields with their defaults, and the one list of key names
// (`fields`) that the parser, `--print-config`, the run header and the checkpoint all use. Command line over
// file over default.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace slip {

struct TargetConfig {
  std::string path;                  // Hugging Face folder of the frozen target
  std::string attention = "native";  // native | cudnn
};
struct DrafterRunConfig {
  std::string config;     // a drafter config.json: a new drafter
  std::string init_from;  // or a published drafter folder: warm start
};
struct DataConfig {
  std::string tokens;    // glob(s) of token shards, separated by commas, each with @weight or without
  std::string features;  // folders or glob(s) of feature shards: offline training
  int64_t reader_threads = 2;
  int64_t max_length = 0;  // documents are cut here; 0: data.row_tokens
  int64_t row_tokens = 4096;
  int64_t epochs = 0;
  uint64_t seed = 0;
  bool shuffle = true;
};
struct RolesConfig {
  std::string targets = "auto", drafters = "auto";
  int64_t queue_rows = 2;  // feature slots a drafter keeps
};
struct TrainConfig {
  int64_t steps = 0;
  int64_t rows_per_step = 8;
  int64_t anchors = 512;
  int64_t blocks_per_pass = 512;
  std::string loss = "decay";  // decay | dpace
  double gamma = -1;           // -1: 7, 5, 4 for blocks of 16, 10, 8, else block/2
  double alpha = 0.5;
  std::string label_mask = "prefix";  // prefix | pointwise
  double lr = 6e-4, min_lr_ratio = 0, warmup_ratio = 0.04;
  std::string schedule = "cosine";  // cosine | wsd | linear | constant
  double beta1 = 0.9, beta2 = 0.95, weight_decay = 0, clip = 1;
  std::string precision = "bf16";  // bf16 | fp8 | fp32
  double max_minutes = 0;
  int64_t max_bad_steps = 5;
};
struct CheckpointConfig {
  std::string dir;
  int64_t every_steps = 1000;
  double every_minutes = 0;
  int64_t keep = 3;
  int64_t keep_every = 0;
  bool background = true;
  int64_t retries = 0;
  double retry_s = 60;
  int64_t keep_best = 0;
};
struct DumpConfig {
  std::string dir;        // where feature shards go; empty: none
  int64_t max_bytes = 0;  // of the folder; 0: no limit
  int64_t shard_bytes = int64_t{4} << 30;
  std::string span = "all";       // all | supervised
  std::string bf16 = "float";     // float | uint16
  std::string compress = "none";  // none | deflate
  int64_t queue_rows = 3;         // rows of host memory between the target and the file
};
struct EvalConfig {
  std::string tokens;
  std::string prompts;  // glob(s) of token shards to decode
  std::string features;
  int64_t anchors = 64;
  int64_t max_new = 256;
  int64_t every_steps = 0;
};
struct LogConfig {
  std::string dir;
  int64_t every_steps = 10;
  bool tensorboard = false;
};
struct CommConfig {
  double timeout_s = 600;
  double heartbeat_s = 1, dead_after_s = 15;
  int64_t sum_blocks = 16, feature_blocks = 8;  // thread blocks of NCCL; 0: its choice
};

struct Config {
  TargetConfig target;
  DrafterRunConfig drafter;
  DataConfig data;
  RolesConfig roles;
  TrainConfig train;
  CheckpointConfig checkpoint;
  DumpConfig dump;
  EvalConfig eval;
  LogConfig log;
  CommConfig comm;
};

// Calls f(key, field, help) for every field. C is Config or const Config.
template <class C, class F> void fields(C& c, F&& f) {
  f("target.path", c.target.path, "folder of the frozen target: config.json and safetensors");
  f("target.attention", c.target.attention,
    "attention of the target: native (built in) or cudnn (compiles at start-up)");
  f("drafter.config", c.drafter.config, "config.json of the drafter to train from new weights");
  f("drafter.init_from", c.drafter.init_from, "published drafter folder to start from (warm start) instead");
  f("data.tokens", c.data.tokens,
    "token shards: file or glob, several separated by commas; glob@2 draws its documents twice an epoch, "
    "@0.5 every second one");
  f("data.features", c.data.features,
    "feature shards (`dump`): a folder, file or glob; without data.tokens the target runs for eval.prompts "
    "only");
  f("data.reader_threads", c.data.reader_threads, "threads of a drafter rank that read feature shards ahead");
  f("data.max_length", c.data.max_length, "cut documents to so many tokens; 0: data.row_tokens");
  f("data.row_tokens", c.data.row_tokens, "documents are packed into rows of at most so many tokens");
  f("data.epochs", c.data.epochs, "passes over the documents; 0: no limit");
  f("data.seed", c.data.seed, "seed of document order, anchors and new weights");
  f("data.shuffle", c.data.shuffle, "new document order every epoch; false: the order of the shards");
  f("roles.targets", c.roles.targets, "ranks that run the target: a number or auto");
  f("roles.drafters", c.roles.drafters, "ranks that train the drafter: a number or auto");
  f("roles.queue_rows", c.roles.queue_rows, "rows of features that a drafter rank requests ahead");
  f("train.steps", c.train.steps, "optimizer steps; 0: no limit (then data.epochs must be set)");
  f("train.rows_per_step", c.train.rows_per_step, "rows of one optimizer step, over all ranks");
  f("train.anchors", c.train.anchors, "anchors (blocks) per document and epoch, at most");
  f("train.blocks_per_pass", c.train.blocks_per_pass,
    "a row's blocks are trained in passes of at most so many: bounds memory; the same but for the order of "
    "sums, in fp8 but for its rounding");
  f("train.loss", c.train.loss, "decay or dpace");
  f("train.gamma", c.train.gamma,
    "decay constant of the slot weights; -1: 7, 5, 4 for blocks of 16, 10, 8; 0: no decay");
  f("train.alpha", c.train.alpha, "smoothing of the dpace weights");
  f("train.label_mask", c.train.label_mask,
    "prefix (a block's labels end at the first unsupervised token) or pointwise");
  f("train.lr", c.train.lr, "peak learning rate");
  f("train.min_lr_ratio", c.train.min_lr_ratio, "final learning rate as a share of the peak");
  f("train.warmup_ratio", c.train.warmup_ratio, "share of the steps that warm up");
  f("train.schedule", c.train.schedule, "cosine, wsd, linear or constant");
  f("train.beta1", c.train.beta1, "AdamW");
  f("train.beta2", c.train.beta2, "AdamW");
  f("train.weight_decay", c.train.weight_decay, "AdamW, on all tensors");
  f("train.clip", c.train.clip, "global gradient norm is clipped to this; 0: not");
  f("train.precision", c.train.precision,
    "bf16 or fp32 working weights; fp8: bf16 weights, and the drafter's products in e4m3 (sm_90). A CPU "
    "computes in fp32 either way, with operands rounded to fp8 where asked");
  f("train.max_minutes", c.train.max_minutes,
    "save and stop after so many minutes (exit code 75); 0: no limit");
  f("train.max_bad_steps", c.train.max_bad_steps,
    "steps in a row with NaN or infinity that are skipped before the run ends");
  f("checkpoint.dir", c.checkpoint.dir, "where checkpoints go; empty: <log.dir>/checkpoints");
  f("checkpoint.every_steps", c.checkpoint.every_steps, "save every so many steps; 0: only at the end");
  f("checkpoint.every_minutes", c.checkpoint.every_minutes, "and every so many minutes; 0: not");
  f("checkpoint.keep", c.checkpoint.keep, "complete checkpoints to keep; 0: all");
  f("checkpoint.keep_every", c.checkpoint.keep_every,
    "checkpoints whose step is a multiple of this are kept for ever; 0: none");
  f("checkpoint.background", c.checkpoint.background,
    "write while training goes on, where the host has memory for a copy of the state");
  f("checkpoint.retries", c.checkpoint.retries, "times a failed save is tried again before the run ends");
  f("checkpoint.retry_s", c.checkpoint.retry_s, "seconds between them");
  f("checkpoint.keep_best", c.checkpoint.keep_best,
    "and so many of highest decoded acceptance (eval.prompts): every evaluation is then saved; 0: none");
  f("dump.dir", c.dump.dir, "folder of feature shards to write (`dump`, and while training); empty: none");
  f("dump.max_bytes", c.dump.max_bytes, "never more bytes than this in dump.dir; 0: no limit");
  f("dump.shard_bytes", c.dump.shard_bytes, "a feature shard ends before it is larger than this");
  f("dump.span", c.dump.span,
    "all (features of every token) or supervised (none after a document's last possible anchor)");
  f("dump.bf16", c.dump.bf16,
    "float (HDF5 type that h5py and h5dump show as numbers) or uint16 (for viewers in a browser)");
  f("dump.compress", c.dump.compress, "none, or deflate (with byte shuffle: a quarter smaller, far slower)");
  f("dump.queue_rows", c.dump.queue_rows, "rows of host memory between the target and its file");
  f("eval.tokens", c.eval.tokens,
    "held-out token shards: loss and simulated acceptance; empty: they are not evaluated");
  f("eval.prompts", c.eval.prompts,
    "token shards whose prompts are decoded at every evaluation: decoded acceptance; empty: none");
  f("eval.features", c.eval.features, "held-out feature shards, for a run without data.tokens");
  f("eval.anchors", c.eval.anchors, "anchors per held-out document");
  f("eval.max_new", c.eval.max_new, "tokens of a decoded response at most");
  f("eval.every_steps", c.eval.every_steps, "evaluate every so many steps; 0: at the start and the end only");
  f("log.dir", c.log.dir, "the run directory");
  f("log.every_steps", c.log.every_steps,
    "steps between lines in the log, which has one every ten seconds all the same; metrics.jsonl has every "
    "step");
  f("log.tensorboard", c.log.tensorboard,
    "also write the numbers of metrics.jsonl and eval.jsonl as TensorBoard event files into log.dir");
  f("comm.timeout_s", c.comm.timeout_s, "seconds that a rank waits for another before it gives up");
  f("comm.heartbeat_s", c.comm.heartbeat_s, "seconds between the signs of life that ranks send; 0: none");
  f("comm.dead_after_s", c.comm.dead_after_s,
    "seconds without a sign of life after which a rank counts as gone and the job ends");
  f("comm.sum_blocks", c.comm.sum_blocks,
    "thread blocks of NCCL that sum gradients beside the backward pass, which leaves as many "
    "multiprocessors free; 0: NCCL's choice");
  f("comm.feature_blocks", c.comm.feature_blocks,
    "thread blocks of NCCL that carry features from one GPU to another; 0: NCCL's choice");
}

std::string print_config(const Config&);              // INI text that parses back to the same Config
std::string nearest_key(const std::string& unknown);  // the known key of smallest edit distance
// Every contradiction at once, one a line; empty: none. Looks at values only, at no file. `dump` needs no
// drafter run: neither log.dir nor a number of steps.
enum class ConfigUse { train, dump };
std::vector<std::string> contradictions(const Config&, ConfigUse = ConfigUse::train);

}  // namespace slip
