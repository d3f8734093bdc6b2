#include "launch/prompt_evaluation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "comm/collectives.hpp"
#include "core/progress.hpp"
#include "launch/responses.hpp"

namespace slip {
namespace {

// From rank 0 of `comm` to all: a response, or a list of them.
void spread(const Comm& comm, std::vector<int64_t>& words, double timeout_s, std::string_view what) {
  int64_t count = static_cast<int64_t>(words.size());
  broadcast(comm, 0, &count, sizeof count, deadline_in(timeout_s), what);
  words.resize(static_cast<size_t>(count));
  broadcast(comm, 0, words.data(), count * 8, deadline_in(timeout_s), what);
}

void spread_all(const Comm& comm, std::vector<Response>& responses, double timeout_s) {
  std::vector<int64_t> all;
  for (const Response& r : responses) {
    const std::vector<int64_t> words = response_words(r);
    all.push_back(static_cast<int64_t>(words.size()));
    all.insert(all.end(), words.begin(), words.end());
  }
  spread(comm, all, timeout_s, "what was decoded");
  responses.clear();
  for (size_t at = 0; at < all.size(); at += 1 + static_cast<size_t>(all[at]))
    responses.push_back(response_from(std::span(all).subspan(at + 1, static_cast<size_t>(all[at]))));
}

}  // namespace

DecodeRule evaluation_rule(const RunOptions& o, const RunInputs& in) {
  return {.block = in.drafter.block, .max_new = o.config.eval.max_new, .stops = in.stops};
}

std::vector<Response> ask_targets(const Ranks& ranks, const Plan& plan, const Prompts& prompts,
                                  std::span<const Bf16> published, int64_t step, double timeout_s) {
  const bool first = ranks.drafter_index() == 0;
  if (first) {
    // Only read on this rank: it is the root.
    broadcast(ranks.decoders, 0, const_cast<Bf16*>(published.data()),
              static_cast<int64_t>(published.size_bytes()), deadline_in(timeout_s),
              "the drafter to decode with");
  }
  std::vector<Response> out;
  Progress progress("decoding", static_cast<double>(prompts.list.size()), "prompts");
  for (size_t i = 0; i < prompts.list.size(); ++i) {
    ranks.at(step, "decode");
    std::vector<int64_t> words;
    if (first) {
      const int target = 1 + static_cast<int>(i % static_cast<size_t>(plan.targets));
      words = response_words(take_response(ranks.decoders, target, timeout_s, "to decode a prompt"));
      progress.at(static_cast<double>(i + 1));
    }
    if (ranks.drafter_count() > 1) spread(ranks.drafters, words, timeout_s, "a decoded prompt");
    out.push_back(response_from(words));
  }
  if (first) spread_all(ranks.decoders, out, timeout_s);
  return out;
}

template <class T>
std::vector<Response> answer_drafters(PromptDecoder<T>& decoder, const Ranks& ranks, const Prompts& prompts,
                                      int64_t step, double timeout_s, const Queue& queue) {
  const Comm& comm = ranks.decoders;
  ranks.at(step, "decode");
  std::vector<Bf16> published(static_cast<size_t>(decoder.drafter().layout.count));
  broadcast(comm, 0, published.data(), static_cast<int64_t>(published.size()) * 2, deadline_in(timeout_s),
            "the drafter to decode with");
  std::vector<float> flat(published.size());
  std::transform(published.begin(), published.end(), flat.begin(), [](Bf16 x) { return to_float(x); });
  set_weights(decoder.drafter(), flat, queue);
  const size_t targets = static_cast<size_t>(comm.size()) - 1, me = static_cast<size_t>(comm.rank()) - 1;
  ResponsePost post(comm, 0, timeout_s);
  for (size_t i = me; i < prompts.list.size(); i += targets) {
    ranks.at(step, "decode");
    if (comm.peers().watch) comm.peers().watch();
    post.post(decoder.answer(prompts.list[i]));
  }
  post.finish();
  std::vector<Response> out;
  spread_all(comm, out, timeout_s);
  return out;
}

std::vector<RowTokens> replay_rows(const Prompts& prompts, const std::vector<Response>& responses,
                                   int64_t row_tokens) {
  std::vector<RowTokens> out;
  for (size_t i = 0; i < responses.size(); ++i) {
    const std::vector<int32_t>& prompt = prompts.list[i].ids;
    const int64_t given = static_cast<int64_t>(prompt.size());
    const int64_t length = std::min(given + static_cast<int64_t>(responses[i].tokens.size()), row_tokens);
    if (responses[i].cycles.empty() || length < given + 2) continue;  // a cycle needs its token and a label
    if (out.empty() || static_cast<int64_t>(out.back().ids.size()) + length > row_tokens) out.emplace_back();
    RowTokens& row = out.back();
    row.lengths.push_back(length);
    row.document_ids.push_back(static_cast<int64_t>(i));
    row.ids.insert(row.ids.end(), prompt.begin(), prompt.end());
    for (int64_t t = given; t < length; ++t)
      row.ids.push_back(responses[i].tokens[static_cast<size_t>(t - given)].token);
    row.mask.resize(row.mask.size() + static_cast<size_t>(given), 0);
    row.mask.resize(row.ids.size(), 1);
  }
  return out;
}

RowBlocks replay_blocks(const RowTokens& row, const DrafterModel& model,
                        const std::vector<Response>& responses, std::vector<DecodedCycle>& cycles) {
  RowBlocks out;
  out.block = model.block;
  int64_t start = 0;
  for (size_t d = 0; d < row.lengths.size(); ++d) {
    const size_t first = static_cast<size_t>(start), n = static_cast<size_t>(row.lengths[d]),
                 prompt = static_cast<size_t>(row.document_ids[d]);
    std::vector<int> anchors;
    const std::vector<Cycle>& decoded = responses[prompt].cycles;
    for (size_t c = 0; c < decoded.size() && decoded[c].start + 1 < row.lengths[d]; ++c) {
      anchors.push_back(static_cast<int>(decoded[c].start));
      cycles.push_back({prompt, c});
    }
    add_document(out, model, LabelMask::prefix, std::span(row.ids).subspan(first, n),
                 std::span(row.mask).subspan(first, n), anchors, start);
    start += row.lengths[d];
  }
  return out;
}

void compare_cycles(Parity& parity, const Prompts& prompts, const std::vector<Response>& responses,
                    std::span<const DecodedCycle> cycles, std::span<const ReplayedBlock> blocks,
                    float tolerance) {
  require(cycles.size() == blocks.size(), "compare_cycles: a block for each cycle");
  for (size_t i = 0; i < cycles.size(); ++i) {
    const Cycle& c = responses[cycles[i].prompt].cycles[cycles[i].cycle];
    const ReplayedBlock& b = blocks[i];
    const int decoded = std::min(c.advance - 1, b.labels);
    parity.cycles += 1;
    if (decoded == b.accepted) {
      parity.equal += 1;
      continue;
    }
    const size_t slot = static_cast<size_t>(std::min(decoded, b.accepted));
    const float lead = std::abs(b.lead.at(slot));
    parity.largest_gap = std::max(parity.largest_gap, static_cast<double>(lead));
    if (lead <= tolerance) {
      parity.near_ties += 1;
      continue;
    }
    parity.different += 1;
    if (!parity.first.empty()) continue;
    parity.first = fmt::format(
        "document {}, the cycle at position {}: decoding accepted {} drafts, the training forward {}, and "
        "its "
        "logits are {:.3g} from a tie at draft {}",
        prompts.list[cycles[i].prompt].document, c.start, decoded, b.accepted, lead, slot + 1);
  }
}

bool parity_fails(const Parity& p) { return p.different > 0 || p.near_ties > std::max(3.0, p.cycles / 10); }

std::string parity_complaint(const Parity& p) {
  const std::string example =
      p.different > 0 ? p.first : fmt::format("all of them near ties, which are rare where both are right");
  return fmt::format(
      "training and decoding disagree about {:.0f} of {:.0f} cycles ({}). What is trained would not be what "
      "is "
      "served. Likely causes: other layers tapped or another order of them, a context that ends before or "
      "after the anchor, other positions or rotary frequencies, another mask token or block, a window or "
      "causality that differs, weights of another step",
      p.different + p.near_ties, p.cycles, example);
}

template std::vector<Response> answer_drafters(PromptDecoder<float>&, const Ranks&, const Prompts&, int64_t,
                                               double, const Queue&);
#if SLIP_HAVE_CUDA
template std::vector<Response> answer_drafters(PromptDecoder<Bf16>&, const Ranks&, const Prompts&, int64_t,
                                               double, const Queue&);
#endif

}  // namespace slip
