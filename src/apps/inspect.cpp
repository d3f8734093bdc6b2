// `inspect`: what is at a path, recognised by what is in it and not by its name. Nothing is ever written.
#include "apps/inspect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "apps/commands.hpp"
#include "apps/inspect_features.hpp"
#include "apps/inspect_text.hpp"
#include "core/log.hpp"
#include "io/durable.hpp"
#include "io/feature_shard.hpp"
#include "io/file.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

struct Kind {
  Facts (*facts)(const std::string&, const InspectOptions&);
  std::string (*text)(const Facts&);
};
constexpr Kind kDump{dump_facts, dump_text}, kTokenShard{token_shard_facts, token_shard_text},
    kSafetensors{safetensors_facts, safetensors_text}, kModel{model_facts, model_text},
    kCheckpoint{checkpoint_facts, checkpoint_text}, kCheckpoints{checkpoints_facts, checkpoints_text},
    kRun{run_facts, run_text};

bool begins_with(const fs::path& name, const char* start) { return name.string().rfind(start, 0) == 0; }

// A checkpoint has a manifest.json too.
bool is_dump(const fs::path& manifest) {
  return read_text(manifest.string(), int64_t{1} << 30).find("slipstream-features-manifest") !=
         std::string::npos;
}

const Kind* recognise_folder(const fs::path& folder) {
  std::error_code ignored;
  const auto has = [&](const char* name) { return fs::exists(folder / name, ignored); };
  if (has("metrics.jsonl") || has("config.ini")) return &kRun;
  if (has("manifest.json") && is_dump(folder / "manifest.json")) return &kDump;
  if (has("manifest.json") || has("state/trainer.json") || begins_with(folder.filename(), "step-"))
    return &kCheckpoint;
  if (has("latest")) return &kCheckpoints;
  for (const fs::directory_entry& e : fs::directory_iterator(folder, ignored)) {
    if (e.is_directory(ignored) && begins_with(e.path().filename(), "step-")) return &kCheckpoints;
  }
  const bool weights = has("model.safetensors") || has("model.safetensors.index.json");
  return weights || has("config.json") ? &kModel : nullptr;
}

const Kind* recognise_file(const std::string& path) {
  const InputFile file(path);
  std::string start(static_cast<size_t>(std::min<int64_t>(file.size(), 64)), '\0');
  file.read(0, static_cast<int64_t>(start.size()), start.data());
  if (start.rfind("\x89HDF\r\n\x1a\n", 0) == 0) {
    const bool features = !path.ends_with(".partial") && h5_format(path).rfind("slipstream-features", 0) == 0;
    return features ? &kDump : &kTokenShard;
  }
  // Eight bytes of length, then JSON; the reader says what is wrong with a file that only has the name.
  const size_t first = start.find_first_not_of(" \t\r\n", std::min<size_t>(start.size(), 8));
  const bool json = first != std::string::npos && start[first] == '{';
  return json || path.ends_with(".safetensors") ? &kSafetensors : nullptr;
}

const Kind& recognise(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) fail_input(fmt::format("{}: no such file or folder", path));
  const bool folder = fs::is_directory(path, ignored);
  const Kind* kind = folder ? recognise_folder(path) : recognise_file(path);
  if (kind != nullptr) return *kind;
  fail_input(fmt::format(
      "{}: {}", path,
      folder ? "no run directory (metrics.jsonl, config.ini), dump or checkpoint (manifest.json), "
               "folder of checkpoints (step-..., "
               "latest) or model (config.json, model.safetensors) is in this folder"
             : "neither a token or feature shard (HDF5) nor a safetensors file"));
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

struct Views {
  std::string other;  // --diff
  std::string html;   // --html
};

Facts inspect_path(const std::string& path, const InspectOptions& o, const Views& v, std::string& text) {
  Kind kind = recognise(path);
  const bool dump = kind.facts == kDump.facts;
  if (!dump && (!v.other.empty() || !v.html.empty() || o.document >= 0))
    fail_input(
        fmt::format("{}: no feature shard or dump: --diff, --html and --document are for those", path));
  Facts facts = v.other.empty() ? kind.facts(path, o) : dump_difference(path, v.other, o);
  if (!v.other.empty()) kind.text = difference_text;
  if (!v.html.empty()) write_text_durably(v.html, dump_page(facts));
  text = fmt::format("{}: {}\n{}", path, facts.at("kind").get<std::string>(), kind.text(facts));
  for (const Facts& p : facts.at("problems")) text += fact_row("problem", value_text(p));
  return facts;
}

}  // namespace

int run_inspect(const Arguments& arguments) {
  InspectOptions o;
  std::vector<std::string> paths;
  bool json = false;
  Views views;
  Options options(
      "inspect", "PATH... [--verify] [--json] [--tensors N] [--document ID] [--diff OTHER] [--html FILE]",
      "Shows what is at each path: token shards, feature shards and dumps, safetensors files, folders of "
      "targets and drafters, "
      "checkpoints, folders of\n"
      "checkpoints, run directories. Reads only. Exit code 3 when something is broken or unknown.");
  options.positional(&paths, "path", "what to look at")
      .flag("verify", &o.verify,
            "read everything: token ids, mask values, checksums; NaN or infinity in a model's weights is a "
            "problem")
      .flag("json", &json, "one JSON object a line for each path")
      .number("tensors", &o.tensors,
              "rows of the table of tensors, and only those are read; 0: headers only; -1: all")
      .number("documents", &o.documents,
              "documents of a dump for statistics and differences, evenly spread; -1: all")
      .number("document", &o.document, "of a dump: this document token by token, by its id")
      .text("diff", &views.other,
            "another dump: for each tap relative L2 error, cosine and the largest difference, where both "
            "have a document")
      .text("html", &views.html, "of a dump: write a page with its statistics in pictures");
  if (!options.parse(arguments)) return kOk;
  if (paths.empty()) fail_usage("inspect: which path? (slipstream inspect --help shows the options)");
  if (paths.size() > 1 && (!views.other.empty() || !views.html.empty()))
    fail_usage("inspect: --diff and --html take one path");
  if (!views.html.empty() && (!views.other.empty() || o.document >= 0))
    fail_usage("inspect: --html is a page of its own; leave --diff and --document out");
  if (o.documents < -1 || o.documents == 0)
    fail_usage(fmt::format("--documents: {}, want a number above 0 or -1", o.documents));
  if (o.tensors < -1) fail_usage(fmt::format("--tensors: {} is below -1", o.tensors));

  size_t bad = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string path = without_slash(paths[i]);
    std::string text;
    Facts facts{{"path", path}, {"kind", nullptr}, {"problems", Facts::array()}};
    // One bad path of several does not hide the others.
    const bool shown = attempt(facts, [&] { facts = inspect_path(path, o, views, text); });
    bad += facts.at("problems").empty() ? 0 : 1;
    if (json) std::cout << facts.dump(-1, ' ', false, Facts::error_handler_t::replace) << std::endl;
    if (!json && shown) std::cout << (i > 0 ? "\n" : "") << text << std::flush;
    for (const Facts& p : facts.at("problems"))
      log_error(shown ? fmt::format("{}: {}", path, p.get<std::string>()) : p.get<std::string>());
  }
  return bad == 0 ? kOk : kBadInput;
}

}  // namespace slip
