// Everything a run reads before it takes memory: architectures, documents, the plan, and where it stands. One
// rank checks it all (`check_everything`) and the others follow its verdict; then every rank opens its own.
#pragma once
#include <optional>
#include <string>

#include "core/config.hpp"
#include "io/feature_files.hpp"
#include "io/prompts.hpp"
#include "io/tokens.hpp"
#include "launch/plan.hpp"
#include "model/config.hpp"
#include "model/target.hpp"
#include "train/checkpoint.hpp"
#include "train/rows.hpp"
#include "train/step.hpp"

namespace slip {

struct RunOptions {
  Config config;
  std::string resume = "none";  // none, auto, or a checkpoint's folder
  int64_t extend = 0;           // more steps for a finished run
  bool allow_changes = false;   // resume in spite of contradictions
  Device device = Device::cpu;
  bool synthetic = false;  // weights from config.json alone; no checkpoint is written unless `publish`
  bool publish = false;
  bool share_gpu = false;  // ranks may share a GPU: tensors then travel by MPI through pinned memory
  std::string command_line, versions;  // for the run directory
  std::string program = "slipstream";  // name and version, for the files that state their writer
};

struct RunInputs {
  TargetModel target;
  DrafterModel drafter;
  std::optional<TokenCorpus> corpus, eval;  // of token shards, or of the tokens in feature shards
  std::vector<Source> sources;              // of corpus: the entries of data.tokens, with their weights
  std::optional<FeatureFiles> features, eval_features;
  double rows_on_disk = 0;         // share of the rows of epoch 0
  bool offline = false;            // no rank runs the target: all rows are on disk, nothing is decoded
  std::optional<Prompts> prompts;  // to decode at every evaluation
  std::vector<int32_t> stops;      // tokens that end a response
  LossRule rule;
  LabelMask label_mask = LabelMask::prefix;
  DrafterLimits limits{};
  int64_t last_tap = 0;
  int64_t longest = 0;                    // tokens of the longest document
  TrainerState state;                     // where the run begins: fresh, or as the checkpoint says
  std::optional<std::string> checkpoint;  // to load
};

// What a rank that runs the target loads of it: up to the last tap, or all when it decodes as well.
TargetParts target_parts(const RunInputs&, bool head);

std::string target_fingerprint(const RunOptions&);  // of the weights (data/FORMAT.md, chapter 2)
std::string checkpoint_folder(const Config&);
RunInputs read_inputs(const RunOptions&);  // opens; refuses what does not fit together
// What only one rank needs to look at: every token, the presence of every tensor, the run directory.
void check_everything(const RunOptions&, const RunInputs&);
// The rows of an epoch of training.
std::vector<Row> training_rows(const RunInputs&, const DataConfig&, int64_t epoch);
// What a row costs on each side and how long an epoch is, from the rows of the first epoch.
PlanCosts plan_costs(const RunOptions&, const RunInputs&);

}  // namespace slip
