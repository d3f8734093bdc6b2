#include "apps/decode_report.hpp"

#include <fmt/format.h>

#include "apps/inspect_text.hpp"

namespace slip {
namespace {

std::vector<int32_t> ids_of(const Response& r) {
  std::vector<int32_t> ids;
  for (const Choice& c : r.tokens) ids.push_back(c.token);
  return ids;
}

Acceptance acceptance_of(const Decoded& d, const Prompts& prompts, int64_t block, int family) {
  std::vector<const Response*> some;
  for (size_t i = 0; i < d.responses.size(); ++i) {
    if (family < -1 || prompts.list[i].family == family) some.push_back(&d.responses[i]);
  }
  return acceptance(some, block);
}
constexpr int kAll = -2;

double rate(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

Facts acceptance_facts(const Acceptance& a) {
  return {{"documents", a.responses},   {"tokens", a.tokens},
          {"cycles", a.cycles},         {"target_calls", a.target_calls()},
          {"pooled", a.pooled},         {"mean", a.mean},
          {"pooled_raw", a.pooled_raw}, {"mean_raw", a.mean_raw},
          {"histogram", a.histogram},   {"per_slot", a.per_slot}};
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

std::vector<int> families_of(const Prompts& prompts) {
  std::vector<int> out;
  for (size_t f = 0; f < prompts.families.size(); ++f) out.push_back(static_cast<int>(f));
  const auto none = [](const Prompt& p) { return p.family < 0; };
  if (!out.empty() && std::any_of(prompts.list.begin(), prompts.list.end(), none)) out.push_back(-1);
  return out;
}
std::string family_name(const Prompts& prompts, int f) {
  return f < 0 ? "(none)" : prompts.families[static_cast<size_t>(f)];
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
  Facts out{{"target", o.target}, {"drafter", o.drafter}, {"prompts", o.prompts},         {"device", kind},
            {"block", o.block},   {"max_new", o.max_new}, {"temperature", o.temperature}, {"seed", o.seed}};
  out.update(acceptance_facts(acceptance_of(d, prompts, o.block, kAll)));
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
  Facts families = Facts::object();
  for (const int f : families_of(prompts))
    if (const Acceptance a = acceptance_of(d, prompts, o.block, f); a.responses > 0)
      families[family_name(prompts, f)] = acceptance_facts(a);
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
    if (prompts.list[i].family >= 0) one["family"] = family_name(prompts, prompts.list[i].family);
    list.push_back(one);
  }
  out["responses"] = list;
  return out.dump(1, ' ', false, Facts::error_handler_t::replace) + "\n";
}

std::string decode_text(const DecodeOptions& o, const std::string& kind, const Prompts& prompts,
                        const Decoded& d) {
  const Acceptance a = acceptance_of(d, prompts, o.block, kAll);
  std::string out = fmt::format("{} prompts of {}, {}, block {}, temperature {}\n", a.responses, o.prompts,
                                kind, o.block, o.temperature);
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
  for (const int f : families_of(prompts)) {
    const Acceptance one = acceptance_of(d, prompts, o.block, f);
    if (one.responses == 0) continue;
    out += fact_row("  " + printable(family_name(prompts, f)),
                    fmt::format("{:.2f} pooled, {:.2f} mean, {} responses, {} tokens", one.pooled, one.mean,
                                one.responses, one.tokens));
  }
  return out;
}

}  // namespace slip
