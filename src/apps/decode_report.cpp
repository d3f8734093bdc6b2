#include "apps/decode_report.hpp"

#include <fmt/format.h>

#include "apps/inspect_text.hpp"
#include "launch/decode_figures.hpp"

namespace slip {
namespace {

std::vector<int32_t> ids_of(const Response& r) {
  std::vector<int32_t> ids;
  for (const Choice& c : r.tokens) ids.push_back(c.token);
  return ids;
}

double rate(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

// Where the two ways of decoding part, and how close the target's call was there.
Facts differences(const Prompts& prompts, const Decoded& d) {
  Facts out = Facts::array();
  for (size_t i = 0; i < d.responses.size(); ++i) {
    const int64_t at = first_difference(d.responses[i], d.plain[i]);
    if (at < 0) continue;
    const auto choice = [&](const Response& r) -> Facts {
      const size_t t = static_cast<size_t>(at);
      if (t >= r.tokens.size()) return nullptr;
      return {{"token", r.tokens[t].token}, {"margin", r.tokens[t].margin}};
    };
    out.push_back({{"document", prompts.list[i].document},
                   {"token", at},
                   {"with_drafter", choice(d.responses[i])},
                   {"without", choice(d.plain[i])}});
  }
  return out;
}

int64_t token_count(const std::vector<Response>& responses) {
  int64_t n = 0;
  for (const Response& r : responses) n += static_cast<int64_t>(r.tokens.size());
  return n;
}
int64_t call_count(const std::vector<Response>& responses) {
  int64_t n = 0;
  for (const Response& r : responses) n += 1 + static_cast<int64_t>(r.cycles.size());
  return n;
}

}  // namespace

int64_t first_difference(const Response& a, const Response& b) {
  const size_t n = std::max(a.tokens.size(), b.tokens.size());
  for (size_t t = 0; t < n; ++t) {
    const bool same = t < a.tokens.size() && t < b.tokens.size() && a.tokens[t].token == b.tokens[t].token;
    if (!same) return static_cast<int64_t>(t);
  }
  return -1;
}

std::string decode_json(const DecodeOptions& o, const std::string& kind, const Prompts& prompts,
                        const Decoded& d) {
  Facts out{{"target", o.answers.target},
            {"drafter", o.answers.drafter},
            {"prompts", o.answers.prompts},
            {"device", kind},
            {"block", o.answers.block},
            {"max_new", o.answers.max_new},
            {"temperature", o.answers.temperature},
            {"seed", o.answers.seed},
            {"ranks", o.ranks}};
  out.update(acceptance_json(acceptance_of(d.responses, o.answers.block)));
  out["seconds"] = d.seconds;
  out["tokens_per_s"] = rate(token_count(d.responses), d.seconds);
  if (o.baseline) {
    const Facts differ = differences(prompts, d);
    const int64_t of = static_cast<int64_t>(d.plain.size());
    out["baseline"] = {{"equal", of - static_cast<int64_t>(differ.size())},
                       {"of", of},
                       {"differences", differ},
                       {"target_calls", call_count(d.plain)},
                       {"seconds", d.plain_seconds},
                       {"tokens_per_s", rate(token_count(d.plain), d.plain_seconds)}};
  }
  const Facts families = families_json(acceptance_by_family(prompts, d.responses, o.answers.block));
  if (!families.empty()) out["families"] = families;
  Facts list = Facts::array();
  for (size_t i = 0; i < d.responses.size(); ++i) {
    const Response& r = d.responses[i];
    int64_t advanced = 0;
    for (const Cycle& c : r.cycles) advanced += c.advance;
    Facts one{{"document", prompts.list[i].document},
              {"prompt_tokens", prompts.list[i].ids.size()},
              {"tokens", r.tokens.size()},
              {"cycles", r.cycles.size()},
              {"accepted_plus_one", advanced},
              {"stopped", r.stopped},
              {"ids", ids_of(r)}};
    if (!prompts.text.empty()) one["text"] = prompts.text(ids_of(r));
    if (prompts.list[i].family >= 0)
      one["family"] = prompts.families[static_cast<size_t>(prompts.list[i].family)];
    list.push_back(one);
  }
  out["responses"] = list;
  return out.dump(1, ' ', false, Facts::error_handler_t::replace) + "\n";
}

std::string decode_text(const DecodeOptions& o, const std::string& kind, const Prompts& prompts,
                        const Decoded& d) {
  const Acceptance a = acceptance_of(d.responses, o.answers.block);
  std::string out = fmt::format("{} prompts of {}, {}, block {}, temperature {}\n", a.responses,
                                o.answers.prompts, kind, o.answers.block, o.answers.temperature);
  for (size_t i = 0; i < d.responses.size() && static_cast<int64_t>(i) < o.show; ++i) {
    const Response& r = d.responses[i];
    out += fmt::format("  document {}: {} tokens in {} cycles{}\n", prompts.list[i].document, r.tokens.size(),
                       r.cycles.size(), r.stopped ? "" : ", not finished");
    out += indented(printable(prompts.text(prompts.list[i].ids) + "[[" + prompts.text(ids_of(r)) + "]]"), 4);
  }
  out += fact_row("acceptance",
                  fmt::format("pooled {:.3f}, mean over responses {:.3f} (in full cycles: {:.3f}, {:.3f})",
                              a.pooled, a.mean, a.pooled_raw, a.mean_raw));
  std::string histogram, slots;
  for (size_t n = 1; n < a.histogram.size(); ++n)
    histogram += fmt::format("{}{}: {}", n > 1 ? ", " : "", n, a.histogram[n]);
  for (size_t j = 1; j < a.per_slot.size(); ++j)
    slots += fmt::format("{}{:.3f}", j > 1 ? " " : "", a.per_slot[j]);
  out += fact_row("cycles", fmt::format("{}, by tokens gained: {}", a.cycles, histogram));
  if (!slots.empty()) out += fact_row("accepted up to", slots + " (draft 1, 2, ..)");
  out += fact_row("tokens", fmt::format("{}, {:.1f} a second", a.tokens, rate(a.tokens, d.seconds)));
  out += fact_row("target calls", fmt::format("{}, {} fewer than one a token", a.target_calls(),
                                              a.tokens - a.target_calls()));
  if (o.baseline) {
    const Facts differ = differences(prompts, d);
    out += fact_row("without drafter", fmt::format("{} of {} responses equal, {:.1f} tokens a second",
                                                   d.plain.size() - differ.size(), d.plain.size(),
                                                   rate(token_count(d.plain), d.plain_seconds)));
    for (const Facts& f : differ) out += fact_row("  differs", f.dump());
  }
  for (const auto& [name, one] : acceptance_by_family(prompts, d.responses, o.answers.block)) {
    out += fact_row("  " + printable(name), fmt::format("{:.2f} pooled, {:.2f} mean, {} responses, {} tokens",
                                                        one.pooled, one.mean, one.responses, one.tokens));
  }
  return out;
}

}  // namespace slip
