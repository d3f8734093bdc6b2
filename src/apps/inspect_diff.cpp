// `inspect A --diff B`: the same documents in two dumps, tap by tap.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/inspect_features.hpp"
#include "apps/inspect_statistics.hpp"
#include "apps/inspect_text.hpp"

namespace slip {
namespace {

struct TapDifference {
  double difference = 0, reference = 0, other = 0, product = 0;  // sums over all values
  int64_t equal = 0, values = 0, not_finite = 0;
  double largest = 0, here = 0, there = 0;
  int64_t document = -1, position = -1, channel = -1;  // of the largest
};

// Rows of one document: `a` is compared with the reference `b`.
void compare(const std::vector<Bf16>& a, const std::vector<Bf16>& b, int64_t rows, const FeatureSpec& spec,
             int64_t document, std::vector<TapDifference>& taps) {
  const int64_t h = spec.hidden, k = static_cast<int64_t>(taps.size());
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < k; ++i) {
      TapDifference& d = taps[static_cast<size_t>(i)];
      for (int64_t c = 0; c < h; ++c) {
        const size_t at = static_cast<size_t>((t * k + i) * h + c);
        ++d.values;
        d.equal += a[at] == b[at];
        const double x = to_float(a[at]), y = to_float(b[at]);
        if (!std::isfinite(x) || !std::isfinite(y)) {
          d.not_finite += a[at] == b[at] ? 0 : 1;
          continue;
        }
        const double off = std::abs(x - y);
        d.difference += off * off;
        d.reference += y * y;
        d.other += x * x;
        d.product += x * y;
        if (off > d.largest)
          d.largest = off, d.here = x, d.there = y, d.document = document, d.position = t, d.channel = c;
      }
    }
  }
}

}  // namespace

Facts dump_difference(const std::string& path, const std::string& other, const InspectOptions& o) {
  const FeatureFiles a = open_dump(path), b = open_dump(other);
  Facts facts{{"path", path},
              {"kind", "difference of feature dumps"},
              {"other", other},
              {"problems", Facts::array()}};
  if (a.spec().taps != b.spec().taps || a.spec().hidden != b.spec().hidden) {
    fail_input(fmt::format("{}: taps {} of hidden size {}, {} has taps {} of {}", path,
                           Facts(a.spec().taps).dump(), a.spec().hidden, other, Facts(b.spec().taps).dump(),
                           b.spec().hidden));
  }
  facts["attributes"] = Facts::array();
  for (const std::string& d : spec_differences(a.spec(), b.spec(), other)) facts["attributes"].push_back(d);
  std::vector<TapDifference> taps(a.spec().taps.size());
  int64_t compared = 0, missing = 0, other_tokens = 0, tokens = 0;
  std::vector<Bf16> mine, theirs;
  std::vector<int32_t> ids, their_ids;
  std::vector<uint8_t> mask;
  const std::vector<DumpDocument> documents = dump_documents(a, o.documents);
  int64_t bytes = 0;
  for (const DumpDocument& d : documents) bytes += d.rows * a.spec().bytes_per_token();
  {
    Progress progress("reading", static_cast<double>(bytes), "bytes");
    for (const DumpDocument& d : documents) {
      progress.add(static_cast<double>(d.rows * a.spec().bytes_per_token()));
      const std::optional<FeatureFiles::Place> there = b.find(d.id);
      if (!there) {
        ++missing;
        continue;
      }
      d.shard->read_tokens(d.place, ids, mask);
      there->shard->read_tokens(there->document, their_ids, mask);
      if (ids != their_ids) {
        ++other_tokens;
        continue;
      }
      const FeatureTables& t = there->shard->tables();
      const size_t place = static_cast<size_t>(there->document);
      const int64_t their_rows = t.feature_offsets[place + 1] - t.feature_offsets[place];
      mine.resize(static_cast<size_t>(d.rows * a.spec().values_per_token()));
      theirs.resize(static_cast<size_t>(their_rows * a.spec().values_per_token()));
      d.shard->read_document(d.place, mine.data());
      there->shard->read_document(there->document, theirs.data());
      compare(mine, theirs, std::min(d.rows, their_rows), a.spec(), d.id, taps);
      tokens += std::min(d.rows, their_rows);
      ++compared;
    }
  }
  facts["documents_compared"] = compared;
  facts["tokens_compared"] = tokens;
  facts["documents_missing"] = missing;
  facts["documents_with_other_tokens"] = other_tokens;
  facts["taps"] = Facts::array();
  for (size_t k = 0; k < taps.size(); ++k) {
    const TapDifference& d = taps[k];
    const double lengths = std::sqrt(d.reference) * std::sqrt(d.other);
    facts["taps"].push_back(
        {{"layer", a.spec().taps[k]},
         {"relative_l2", d.reference > 0 ? Facts(std::sqrt(d.difference / d.reference)) : Facts()},
         {"cosine", lengths > 0 ? Facts(d.product / lengths) : Facts()},
         {"equal_share",
          d.values > 0 ? Facts(static_cast<double>(d.equal) / static_cast<double>(d.values)) : Facts()},
         {"not_finite_and_different", d.not_finite},
         {"largest", d.largest},
         {"at", d.document < 0 ? Facts()
                               : Facts{{"document", d.document},
                                       {"position", d.position},
                                       {"channel", d.channel},
                                       {"value", d.here},
                                       {"other", d.there}}}});
  }
  if (compared == 0)
    facts["problems"].push_back(fmt::format("{} and {} have no document in common", path, other));
  if (other_tokens > 0)
    facts["problems"].push_back(fmt::format("{} documents have other tokens in {}", other_tokens, other));
  return facts;
}

std::string difference_text(const Facts& f) {
  std::string out = fact_row("reference", f.at("other").get<std::string>());
  out +=
      fact_row("compared",
               fmt::format("{} documents, {} tokens; {} are not in the reference, {} have other tokens there",
                           f.at("documents_compared").dump(), f.at("tokens_compared").dump(),
                           f.at("documents_missing").dump(), f.at("documents_with_other_tokens").dump()));
  for (const Facts& d : f.at("attributes")) out += fact_row("differs", value_text(d));
  out += fmt::format("  {:<7}{:>13}{:>14}{:>12}{:>12}  where\n", "tap", "relative L2", "cosine", "equal bits",
                     "largest");
  for (const Facts& t : f.at("taps")) {
    const Facts& at = t.at("at");
    const std::string where = at.is_null() ? "-"
                                           : fmt::format("document {}, position {}, channel {}: {} and {}",
                                                         at.at("document").dump(), at.at("position").dump(),
                                                         at.at("channel").dump(), value_text(at.at("value")),
                                                         value_text(at.at("other")));
    const auto number = [](const Facts& v, const char* format) {
      return v.is_null() ? std::string("-") : fmt::format(fmt::runtime(format), v.get<double>());
    };
    out += fmt::format("  {:<7}{:>13}{:>14}{:>12}{:>12}  {}\n", t.at("layer").dump(),
                       number(t.at("relative_l2"), "{:.3e}"), number(t.at("cosine"), "{:.9f}"),
                       number(t.at("equal_share"), "{:.4f}"), number(t.at("largest"), "{:.4g}"), where);
  }
  return out;
}

}  // namespace slip
