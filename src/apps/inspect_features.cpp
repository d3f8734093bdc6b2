// `inspect` of feature shards and dumps (data/FORMAT.md, chapter 2).
#include "apps/inspect_features.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "apps/inspect_h5.hpp"
#include "apps/inspect_statistics.hpp"
#include "apps/inspect_text.hpp"
#include "io/feature_manifest.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kShownTokens = 4096;  // of a document

// Text of a token through the decode table of a shard, or its number.
class TokenTexts {
 public:
  TokenTexts(const std::string& path, int64_t vocab) {
    const H5Id file = open_h5(path);
    if (!h5_has(file, "token_bytes")) return;
    at_ = h5_integers(path, file, "token_byte_offsets", vocab + 1);
    bytes_ = h5_bytes(path, file, "token_bytes");
  }
  std::string operator()(int32_t id) const {
    const size_t i = static_cast<size_t>(id);
    if (id < 0 || i + 1 >= at_.size()) return "";
    return printable(bytes_.substr(static_cast<size_t>(at_[i]), static_cast<size_t>(at_[i + 1] - at_[i])));
  }

 private:
  std::vector<int64_t> at_;
  std::string bytes_;
};

double norm_of(const Bf16* x, int64_t n) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double v = to_float(x[i]);
    squares += v * v;
  }
  return std::sqrt(squares);
}

// Tokens with the norm of each tap.
Facts document_facts(const FeatureFiles& files, int64_t id) {
  const std::optional<FeatureFiles::Place> place = files.find(id);
  if (!place) fail_input(fmt::format("{}: no document {}", files.shards().front().info().path, id));
  const FeatureShard& shard = *place->shard;
  const FeatureSpec& spec = files.spec();
  const size_t d = static_cast<size_t>(place->document);
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  shard.read_tokens(place->document, ids, mask);
  const int64_t rows = shard.tables().feature_offsets[d + 1] - shard.tables().feature_offsets[d];
  std::vector<Bf16> features(static_cast<size_t>(rows * spec.values_per_token()));
  shard.read_document(place->document, features.data());
  const TokenTexts text(shard.info().path, spec.vocab_size);
  Facts tokens = Facts::array();
  for (int64_t t = 0; t < std::min<int64_t>(kShownTokens, static_cast<int64_t>(ids.size())); ++t) {
    const size_t i = static_cast<size_t>(t);
    Facts norms = Facts::array();
    for (int64_t k = 0; t < rows && k < static_cast<int64_t>(spec.taps.size()); ++k)
      norms.push_back(norm_of(features.data() + t * spec.values_per_token() + k * spec.hidden, spec.hidden));
    tokens.push_back(
        {{"id", ids[i]}, {"text", text(ids[i])}, {"supervised", mask[i] == 1}, {"norms", norms}});
  }
  return {{"id", id},
          {"shard", fs::path(shard.info().path).filename().string()},
          {"tokens", ids.size()},
          {"feature_rows", rows},
          {"shown", tokens}};
}

}  // namespace

FeatureFiles open_dump(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return FeatureFiles(expand_feature_paths(path));
  if (path.ends_with(".partial"))
    fail_input(fmt::format("{}: an unfinished file (.partial) is not read", path));
  if (h5_format(path) != kFeatureAllFormat) return FeatureFiles({path});
  const FeatureShard all(path);  // refuses when one of its shards is missing
  const fs::path folder = fs::path(path).parent_path();
  return FeatureFiles(expand_feature_paths(folder.empty() ? "." : folder.string()));
}

std::vector<DumpDocument> dump_documents(const FeatureFiles& files, int64_t most) {
  std::vector<DumpDocument> all;
  for (const FeatureShard& s : files.shards()) {
    const FeatureTables& t = s.tables();
    for (size_t d = 0; d < t.document_ids.size(); ++d) {
      all.push_back({&s, static_cast<int64_t>(d), t.document_ids[d], t.doc_offsets[d + 1] - t.doc_offsets[d],
                     t.feature_offsets[d + 1] - t.feature_offsets[d]});
    }
  }
  std::sort(all.begin(), all.end(), [](const DumpDocument& a, const DumpDocument& b) { return a.id < b.id; });
  const int64_t n = static_cast<int64_t>(all.size());
  if (most < 0 || n <= most) return all;
  std::vector<DumpDocument> out;
  for (int64_t i = 0; i < most; ++i) out.push_back(all[static_cast<size_t>(i * n / most)]);
  return out;
}

Facts dump_facts(const std::string& path, const InspectOptions& o) {
  const FeatureFiles files = open_dump(path);
  const FeatureSpec& spec = files.spec();
  const bool folder = fs::is_directory(path);
  Facts facts{
      {"path", path}, {"kind", folder ? "feature dump" : "feature shard"}, {"problems", Facts::array()}};
  if (folder) facts["complete"] = read_manifest(path).value().complete;
  int64_t documents = 0, tokens = 0, supervised = 0, rows = 0, bytes = 0;
  facts["shards"] = Facts::array();
  for (const FeatureShard& s : files.shards()) {
    const FeatureShardInfo& i = s.info();
    documents += i.documents, tokens += i.tokens, supervised += i.supervised, rows += i.feature_rows,
        bytes += i.bytes;
    facts["shards"].push_back({{"name", fs::path(i.path).filename().string()},
                               {"bytes", i.bytes},
                               {"documents", i.documents},
                               {"tokens", i.tokens}});
  }
  facts["bytes"] = bytes;
  facts["documents"] = documents;
  facts["tokens"] = tokens;
  facts["supervised_tokens"] = supervised;
  facts["feature_rows"] = rows;
  facts["shape"] = {rows, spec.taps.size(), spec.hidden};
  spec_fields(spec, [&](const char* name, const auto& value) { facts["attributes"][name] = value; });
  if (o.document >= 0) {
    attempt(facts, [&] { facts["document"] = document_facts(files, o.document); });
    return facts;
  }
  const std::vector<DumpDocument> looked = dump_documents(files, o.documents);
  std::vector<TapStatistics> taps(spec.taps.size());
  for (TapStatistics& t : taps) t.channel_squares.resize(static_cast<size_t>(spec.hidden));
  int64_t to_read = 0;
  for (const DumpDocument& d : looked) to_read += d.rows * spec.bytes_per_token();
  {
    Progress progress("reading", static_cast<double>(to_read), "bytes");
    std::vector<Bf16> features;
    for (const DumpDocument& d : looked) {
      features.resize(static_cast<size_t>(d.rows * spec.values_per_token()));
      if (!attempt(facts, [&] { d.shard->read_document(d.place, features.data()); })) continue;
      for (int64_t t = 0; t < d.rows; ++t) {
        for (size_t k = 0; k < taps.size(); ++k)
          taps[k].add(features.data() + t * spec.values_per_token() + static_cast<int64_t>(k) * spec.hidden,
                      spec.hidden);
      }
      progress.add(static_cast<double>(d.rows * spec.bytes_per_token()));
    }
  }
  facts["documents_read"] = looked.size();
  facts["taps"] = tap_facts(spec, taps);
  facts["verified"] = false;
  if (o.verify) {
    Progress progress("reading", static_cast<double>(rows * spec.bytes_per_token()), "bytes");
    facts["verified"] = true;
    for (const FeatureShard& s : files.shards()) {
      if (!attempt(facts, [&] { s.verify([&](int64_t n) { progress.add(static_cast<double>(n)); }); }))
        facts["verified"] = false;
    }
  }
  return facts;
}

std::string dump_text(const Facts& f) {
  const auto number = [&](const char* key) { return f.at(key).get<int64_t>(); };
  const Facts& shape = f.at("shape");
  std::string out =
      fact_row("size", fmt::format("{} in {} shards", size_text(number("bytes")), f.at("shards").size()));
  if (f.contains("complete"))
    out += fact_row("complete", f.at("complete").get<bool>() ? "yes" : "no: `dump` goes on");
  out += fact_row("features", fmt::format("[{}, {}, {}] bfloat16 (tokens, taps, hidden)", shape[0].dump(),
                                          shape[1].dump(), shape[2].dump()));
  out += fact_row("documents", fmt::format("{}, {} tokens, {} of them supervised", number("documents"),
                                           number("tokens"), number("supervised_tokens")));
  std::string attributes;
  for (const auto& [name, value] : f.at("attributes").items())
    attributes += fmt::format("{} = {}\n", printable(name), value_text(value));
  out += "  attributes\n" + indented(attributes, 4);
  if (const Facts d = value_or_null(f, "document"); !d.is_null()) {
    out += fmt::format(
        "  document {}  {} tokens in {}; supervised ones have a *, then the norm after each tap\n",
        d.at("id").dump(), d.at("tokens").dump(), d.at("shard").get<std::string>());
    int64_t t = 0;
    for (const Facts& token : d.at("shown")) {
      std::string norms;
      for (const Facts& n : token.at("norms")) norms += fmt::format(" {:>9}", value_text(n));
      std::string text = token.at("text").get<std::string>();
      if (text == "\n") text = "\\n";
      out += fmt::format("    {:>5} {} {:>7}{}  {}\n", t++, token.at("supervised").get<bool>() ? "*" : " ",
                         token.at("id").dump(), norms, text);
    }
    return out;
  }
  if (!f.contains("taps")) return out;  // a document was asked for that is not there
  if (f.at("documents_read").get<int64_t>() < number("documents"))
    out += fact_row("statistics", fmt::format("of {} documents, evenly spread (--documents -1: all)",
                                              f.at("documents_read").dump()));
  out += fmt::format(
      "  {:<7}{:>11}{:>11}{:>11}{:>6}{:>6}{:>11}{:>11}{:>11}  outlier channels (times the median)\n", "tap",
      "mean", "deviation", "|max|", "NaN", "Inf", "norm p1", "norm p50", "norm p99");
  for (const Facts& t : f.at("taps")) {
    std::string outliers;
    for (const Facts& c : t.at("outliers"))
      outliers += fmt::format(" {} (x{:.0f})", c.at("channel").dump(), c.at("times_median").get<double>());
    const Facts& n = t.at("norms");
    out +=
        fmt::format("  {:<7}{:>11}{:>11}{:>11}{:>6}{:>6}{:>11}{:>11}{:>11} {}\n", t.at("layer").dump(),
                    value_text(t.at("mean")), value_text(t.at("deviation")), value_text(t.at("abs_max")),
                    t.at("nan").dump(), t.at("inf").dump(), value_text(n.at("p1")), value_text(n.at("p50")),
                    value_text(n.at("p99")), outliers.empty() ? " none" : outliers);
  }
  if (f.at("verified").get<bool>())
    out += fact_row("verified", "features, tokens and tables of every document, by their checksums");
  return out;
}

}  // namespace slip
