// `generate`: answers of the target to a shard's prompts, as a token shard: what a drafter must learn.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/answer_options.hpp"
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
#include "launch/prompt_decoder.hpp"

namespace slip {
namespace {

constexpr double kTimeout = 600;  // seconds that a rank waits for the others to begin; the end has no limit

struct GenerateOptions {
  std::string target, drafter, prompts, out, settings;
  AnswerOptions answers;
};
struct Models {
  TargetModel target;
  std::optional<DrafterModel> drafter;
  std::vector<int32_t> stops;
  Prompts prompts;
  std::map<int64_t, Answer> done;  // by an earlier run
  bool finished = false;
};

// What an answer depends on; a shard and its journals carry it.
std::string settings_of(const GenerateOptions& o, const Models& m) {
  return nlohmann::json{{"target", o.target},
                        {"prompts", o.prompts},
                        {"documents", m.prompts.list.size()},
                        {"max_new", o.answers.max_new},
                        {"temperature", o.answers.temperature},
                        {"seed", o.answers.seed},
                        {"precision", o.answers.precision}}
      .dump();
}

void read_models(GenerateOptions& o, Models& m) {
  m.target = read_target_config(o.target);
  if (!o.drafter.empty()) {
    m.drafter = read_drafter_config(o.drafter, &m.target);
    check_fit(*m.drafter, m.target, o.target);
  }
  const int64_t most = m.drafter ? m.drafter->block : 1;
  if (o.answers.block > most) fail_usage(fmt::format("--block: {} is above {}", o.answers.block, most));
  if (o.answers.block == 0) o.answers.block = most;
  m.stops = stop_tokens(o.target, m.target.vocab);
  m.prompts = read_prompts(o.prompts, m.target.vocab, m.target.max_position, o.answers.documents);
  o.settings = settings_of(o, m);
  if (std::filesystem::exists(o.out)) {
    const std::string made_by = h5_attribute_text(o.out, "generate");
    if (made_by != o.settings) {
      fail_usage(fmt::format("--out {}: exists, and holds {}; name another file", o.out,
                             made_by.empty() ? "something else" : "answers of other settings: " + made_by));
    }
    m.finished = true;
    return;
  }
  const std::filesystem::path folder = std::filesystem::path(o.out).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder))
    fail_usage(fmt::format("--out {}: there is no folder {}", o.out, folder.string()));
  m.done = read_journals(o.out, o.settings);
}

template <class T>
void answer_share(const GenerateOptions& o, const Models& m, const Comm* comm, const Queue& queue) {
  std::vector<const Prompt*> open;
  for (const Prompt& p : m.prompts.list)
    if (!m.done.contains(p.document)) open.push_back(&p);
  const size_t size = comm != nullptr ? static_cast<size_t>(comm->size()) : 1,
               me = comm != nullptr ? static_cast<size_t>(comm->rank()) : 0;
  if (me >= open.size()) return;
  Arena arena(queue.device);
  const DecodeRule rule{o.answers.block, o.answers.max_new, m.stops,
                        static_cast<float>(o.answers.temperature), static_cast<uint64_t>(o.answers.seed)};
  PromptDecoder<T> decoder(
      m.target, load_target<T>(m.target, WeightFolder(o.target), {m.target.layers, true, true}, arena, queue),
      m.drafter ? &*m.drafter : nullptr, m.prompts.longest(), rule, arena, queue);
  if (m.drafter)
    set_weights(decoder.drafter(), published_parameters(decoder.drafter().layout, o.drafter), queue);
  Journal journal(o.out, static_cast<int>(me), o.settings);
  Progress progress("generate", static_cast<double>(open.size()), "answers");
  for (size_t i = me; i < open.size(); i += size) {
    if (comm != nullptr && comm->peers().watch) comm->peers().watch();
    const Response r = decoder.answer(*open[i]);
    Answer answer{{}, r.stopped};
    for (const Choice& c : r.tokens) answer.ids.push_back(c.token);
    journal.add(open[i]->document, answer);
    progress.at(static_cast<double>(std::min(i + size, open.size())));
  }
}

void write_answers(const GenerateOptions& o, const Models& m) {
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
  const std::string first = expand_globs(o.prompts).front();
  ShardOrigin origin = shard_origin(first);
  origin.source = std::filesystem::path(first).filename().string() + "\nanswered by " +
                  std::filesystem::path(o.target).filename().string();
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
  options.need("target", &o.target, "folder of the target: config.json and safetensors")
      .need("prompts", &o.prompts, "token shard, glob or several separated by commas")
      .need("out", &o.out, "the token shard to write")
      .text("drafter", &o.drafter, "folder of a drafter, to decode with");
  o.answers.add_to(options);
  if (!options.parse(arguments)) return kOk;
  o.answers.settle();
  const std::unique_ptr<MpiSession> mpi = decode_session(argc, argv);
  const Comm* const comm = mpi ? &mpi->world() : nullptr;
  Models m;
  const GpuChoice gpu = settle_ranks(mpi.get(), o.answers);
  if (gpu.code != kOk) return gpu.code;
  const int refused = on_all_ranks(comm, kTimeout, [&] { read_models(o, m); });
  if (refused != kOk) return refused;
  const bool first = !mpi || mpi->rank() == 0;
  if (m.finished) {
    if (first) log_info(fmt::format("{} is there already: nothing to do", o.out));
    return kOk;
  }
  if (first && !m.done.empty())
    log_info(fmt::format("going on: {} of {} answers are there", m.done.size(), m.prompts.list.size()));
  // All have read the journals before one writes.
  if (comm != nullptr) barrier(*comm, deadline_in(kTimeout), "the journals to be read");
  if (first) tidy_journals(o.out, o.settings, m.done);
  if (comm != nullptr) barrier(*comm, deadline_in(kTimeout), "the journals to be tidied");
  with_queue(
      o.answers.device, o.answers.bf16(),
      [&]<class T>(const Queue& queue) { answer_share<T>(o, m, comm, queue); }, gpu.device);
  // Shares take different times: the signs of life watch over this wait.
  if (comm != nullptr) barrier(*comm, deadline_in(1e8), "the answers of all ranks");
  if (first) write_answers(o, m);
  return kOk;
}

}  // namespace slip
