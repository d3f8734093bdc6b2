// `generate`: answers of the target to a shard's prompts, as a token shard: what a drafter must learn.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/answer_models.hpp"
#include "apps/commands.hpp"
#include "apps/decode_ranks.hpp"
#include "apps/generate_journal.hpp"
#include "apps/version.hpp"
#include "apps/with_queue.hpp"
#include "comm/collectives.hpp"
#include "core/log.hpp"
#include "core/progress.hpp"
#include "io/h5_whole.hpp"
#include "io/token_shard_write.hpp"
#include "io/tokens.hpp"

namespace slip {
namespace {

struct GenerateOptions {
  std::string out, settings;
  AnswerOptions answers;
};
struct Found {
  AnswerModels models;
  std::map<int64_t, Answer> done;  // by an earlier run
  bool finished = false;
};

// What an answer depends on; a shard and its journals carry it.
std::string settings_of(const AnswerOptions& o, size_t documents) {
  return nlohmann::json{{"target", o.target},      {"prompts", o.prompts},         {"documents", documents},
                        {"max_new", o.max_new},    {"temperature", o.temperature}, {"seed", o.seed},
                        {"precision", o.precision}}
      .dump();
}

void look(GenerateOptions& o, Found& f) {
  f.models = read_answer_models(o.answers);
  o.settings = settings_of(o.answers, f.models.prompts.list.size());
  if (std::filesystem::exists(o.out)) {
    const std::string made_by = h5_attribute_text(o.out, "generate");
    if (made_by != o.settings) {
      fail_usage(fmt::format("--out {}: exists, and holds {}; name another file", o.out,
                             made_by.empty() ? "something else" : "answers of other settings: " + made_by));
    }
    f.finished = true;
    return;
  }
  const std::filesystem::path folder = std::filesystem::path(o.out).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder))
    fail_usage(fmt::format("--out {}: there is no folder {}", o.out, folder.string()));
  f.done = read_journals(o.out, o.settings);
}

template <class T>
void answer_share(const GenerateOptions& o, const Found& f, const Comm* comm, const GpuChoice& gpu,
                  const Queue& queue) {
  std::vector<const Prompt*> open;
  for (const Prompt& p : f.models.prompts.list)
    if (!f.done.contains(p.document)) open.push_back(&p);
  const size_t size = comm != nullptr ? static_cast<size_t>(comm->size()) : 1,
               me = comm != nullptr ? static_cast<size_t>(comm->rank()) : 0;
  Arena arena(queue.device);
  const auto decoder = load_decoder<T>(o.answers, f.models, comm, gpu, me < open.size(), arena, queue);
  if (decoder == nullptr) return;
  Journal journal(o.out, static_cast<int>(me), o.settings);
  Progress progress("generate", static_cast<double>(open.size()), "answers");
  for (size_t i = me; i < open.size(); i += size) {
    if (comm != nullptr && comm->peers().watch) comm->peers().watch();
    const Response r = decoder->answer(*open[i]);
    Answer answer{{}, r.stopped};
    for (const Choice& c : r.tokens) answer.ids.push_back(c.token);
    journal.add(open[i]->document, answer);
    progress.at(static_cast<double>(std::min(i + size, open.size())));
  }
}

void write_answers(const GenerateOptions& o, const AnswerModels& m) {
  const std::map<int64_t, Answer> answers = read_journals(o.out, o.settings);
  TokenShardContent content;
  int64_t unfinished = 0;
  for (const Prompt& p : m.prompts.list) {
    const auto a = answers.find(p.document);
    if (a == answers.end()) fail(fmt::format("{}: no answer to document {}", o.out, p.document));
    std::vector<int32_t> ids = p.ids;
    ids.insert(ids.end(), a->second.ids.begin(), a->second.ids.end());
    std::vector<uint8_t> mask(p.ids.size(), 0);
    mask.resize(ids.size(), 1);
    content.add(ids, mask, p.family);
    if (!a->second.stopped) ++unfinished;
  }
  content.family_names = m.prompts.families;
  content.set_table(m.prompts.text.bytes(), m.prompts.text.offsets());
  const std::string first = expand_globs(o.answers.prompts).front();
  ShardOrigin origin = shard_origin(first);
  origin.source = std::filesystem::path(first).filename().string() + "\nanswered by " +
                  std::filesystem::path(o.answers.target).filename().string();
  origin.writer = "slipstream generate";
  origin.more = {{"generate", o.settings}};
  if (m.drafter) origin.mask_token_id = m.drafter->mask_token;
  write_token_shard(o.out, origin, content);
  remove_journals(o.out);
  log_info(fmt::format(
      "{}: {} documents, {} tokens, {} supervised; {} answers reached --max-new, {} of one "
      "token were left out",
      o.out, content.documents(), content.tokens(), content.supervised(), unfinished, content.dropped()));
}

}  // namespace

int run_generate(const Arguments& arguments, int& argc, char**& argv) {
  GenerateOptions o;
  Options options(
      "generate", "--target DIR --prompts SHARD --out SHARD [--drafter DIR]",
      "Answers of the target to prompts, as a token shard to train on: a drafter learns what its target "
      "says. "
      "Where documents\n"
      "have answers, the prompt is what stands before the first supervised token. A drafter makes it faster "
      "and changes no\n"
      "answer (greedy: up to the first tie of logits). Started with mpirun the ranks share the prompts. What "
      "was killed goes on\n"
      "with the same command.");
  options.need("out", &o.out, "the token shard to write");
  o.answers.add_to(options, false);
  if (!options.parse(arguments)) return kOk;
  const std::unique_ptr<MpiSession> mpi = decode_session(argc, argv);
  const Comm* const comm = mpi ? &mpi->world() : nullptr;
  Found f;
  const GpuChoice gpu = settle_ranks(mpi.get(), o.answers);
  if (gpu.code != kOk) return gpu.code;
  const int refused = on_all_ranks(comm, kAnswerTimeout, [&] { look(o, f); });
  if (refused != kOk) return refused;
  const bool first = !mpi || mpi->rank() == 0;
  if (f.finished) {
    if (first) log_info(fmt::format("{} is there already: nothing to do", o.out));
    return kOk;
  }
  if (first && !f.done.empty())
    log_info(
        fmt::format("going on: {} of {} answers are there", f.done.size(), f.models.prompts.list.size()));
  // All have read the journals before one writes.
  if (comm != nullptr) barrier(*comm, deadline_in(kAnswerTimeout), "the journals to be read");
  if (first) tidy_journals(o.out, o.settings, f.done);
  if (comm != nullptr) barrier(*comm, deadline_in(kAnswerTimeout), "the journals to be tidied");
  with_queue(
      o.answers.device, o.answers.bf16(),
      [&]<class T>(const Queue& queue) { answer_share<T>(o, f, comm, gpu, queue); }, gpu.device);
  // Shares take different times: the signs of life watch over this wait.
  if (comm != nullptr) barrier(*comm, deadline_in(1e8), "the answers of all ranks");
  if (first) write_answers(o, f.models);
  return kOk;
}

}  // namespace slip
