// Checkpoints: step-NNNNNNNN/{drafter/, state/, manifest.json}. Everything is written under
// step-NNNNNNNN.partial, checksummed and synced, the manifest last, then the folder is renamed and `latest`
// names it. A folder without a manifest, or with files that are not as the manifest says, is no checkpoint.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/config.hpp"
#include "model/weights.hpp"

namespace slip {

// The key of TrainerState::config that holds the weights of data.tokens (mixture.hpp), beside the real keys.
inline constexpr const char* kWeightsKey = "data.tokens@";

// Where the run stands; with the masters and moments it is all that the next step depends on.
struct TrainerState {
  int64_t step = 0;                           // optimizer updates made
  int64_t epoch = 0;                          // of the next step
  int64_t epoch_step = 0;                     // steps of that epoch already consumed
  int64_t bad_steps = 0, bad_in_a_row = 0;    // skipped for NaN or infinity; up to now
  int64_t total_steps = 0;                    // what the schedule counts on
  int64_t documents = 0, tokens = 0;          // of the data, to notice another set
  std::map<std::string, std::string> config;  // resolved keys and values
  double decoded_acceptance = 0;              // of these weights (eval.prompts); 0: they were not decoded
};

// Which complete checkpoints stay when another one is saved; it stays itself.
struct KeepRule {
  int64_t newest = 3;  // 0: all
  int64_t every = 0;   // and those whose step is a multiple of this; 0: none
  int64_t best = 0;    // and so many of highest decoded acceptance, the newer one among equals
};

struct SavedOptimizer {
  std::vector<float> master, m, v;  // flat, in the order of the layout
};
struct OptimizerState {  // the same, owned by somebody else
  const float *master, *m, *v;
};

// What is said of a save while it goes on; either may be empty.
struct SaveHooks {
  std::function<void(const char*)> wrote;       // hears of each file: tests stop there
  std::function<void(int64_t)> moved;           // bytes written, then those read again for the checksums
  static double bytes(const ParameterLayout&);  // about so many in all
};
// Returns the checkpoint's path. Refuses before it writes when the file system has too little room; whatever
// fails, the checkpoints that are there stay, and what was written goes. With keep.best the file `best` names
// the checkpoint of highest decoded acceptance.
std::string save_checkpoint(const std::string& folder, const DrafterModel&, const ParameterLayout&,
                            const OptimizerState&, const TrainerState&, const KeepRule&,
                            const SaveHooks& hooks = {});

// The complete checkpoint with the highest step, sizes checked; incomplete ones are named in the log.
std::optional<std::string> newest_checkpoint(const std::string& folder);
// What is wrong with a checkpoint, or empty: manifest missing, file missing, size or (when asked) checksum
// differs.
std::string checkpoint_problem(const std::string& path, bool checksums);

struct LoadedCheckpoint {
  TrainerState state;
  SavedOptimizer optimizer;
  DrafterModel drafter;
};
// Checksums verified; fail_input names what is missing or differs.
LoadedCheckpoint load_checkpoint(const std::string& path, const ParameterLayout&);
TrainerState load_trainer_state(const std::string& path);

// Settings that may not differ when a run is continued: "key: checkpoint has X, configuration says Y" for
// each. What only changes where or how fast it runs (roles, logs, checkpoints, evaluation, waits, passes) is
// free.
std::vector<std::string> resume_contradictions(const TrainerState& saved, const TrainerState& now);

}  // namespace slip
