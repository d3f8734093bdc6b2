// What `inspect` finds at a path: facts, which --json prints, and the same facts as text. One .cpp file for
// each kind. For src/apps/inspect*.cpp only: it includes nlohmann's header.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/check.hpp"
#include "io/safetensors.hpp"

namespace slip {

using Facts = nlohmann::ordered_json;

struct InspectOptions {
  bool verify = false;       // read everything and check it
  int64_t tensors = -1;      // rows of the table of tensors, and only those are read; -1: all
  int64_t documents = 1000;  // of a dump, for statistics and differences; -1: all
  int64_t document = -1;     // the one to show token by token; -1: none
};

// Each fails where nothing can be shown. What is wrong with the rest stands in facts["problems"], a list of
// texts.
Facts token_shard_facts(const std::string& path, const InspectOptions&);
std::string token_shard_text(const Facts&);
Facts dump_facts(const std::string& path, const InspectOptions&);  // a feature shard, or a folder of them
std::string dump_text(const Facts&);
Facts dump_difference(const std::string& path, const std::string& other, const InspectOptions&);
std::string difference_text(const Facts&);
Facts safetensors_facts(const std::string& path, const InspectOptions&);
std::string safetensors_text(const Facts&);
Facts model_facts(const std::string& folder, const InspectOptions&);  // target, drafter, or weights alone
std::string model_text(const Facts&);
Facts checkpoint_facts(const std::string& folder, const InspectOptions&);
std::string checkpoint_text(const Facts&);
Facts checkpoints_facts(const std::string& folder, const InspectOptions&);  // a folder of checkpoints
std::string checkpoints_text(const Facts&);
Facts run_facts(const std::string& folder, const InspectOptions&);
std::string run_text(const Facts&);

// Parts of the above that several kinds show.
// Counts, dtypes and the table with statistics of each tensor's values, added to `facts`.
void add_tensor_facts(Facts& facts, std::vector<TensorInfo> tensors, const InspectOptions&);
std::string tensor_table_text(const Facts& facts);
// Settings (key to value, as text) that differ from the defaults of this program.
Facts changed_settings(const std::map<std::string, std::string>& settings);
std::string settings_text(const Facts& settings);

// Runs f; when it refuses a file, the reason joins facts["problems"] and what else is known is still shown.
template <class F> bool attempt(Facts& facts, F&& f) {
  try {
    f();
    return true;
  } catch (const Error& e) {
    if (e.exit_code() != kBadInput) throw;
    facts["problems"].push_back(e.what());
    return false;
  }
}

}  // namespace slip
