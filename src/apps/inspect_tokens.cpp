// `inspect` of a token shard (data/FORMAT.md).
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "apps/inspect.hpp"
#include "apps/inspect_h5.hpp"
#include "apps/inspect_text.hpp"
#include "io/token_shard.hpp"

namespace slip {
namespace {

constexpr int64_t kShownTokens = 1000;  // of the first document
constexpr int64_t kPiece = 1 << 20;     // tokens read at a time

// Smallest length that at least so many percent of the documents do not exceed.
int64_t quantile(const std::vector<int64_t>& sorted, int64_t percent) {
  const int64_t n = static_cast<int64_t>(sorted.size());
  return sorted[static_cast<size_t>(std::max<int64_t>((percent * n + 99) / 100, 1) - 1)];
}

Facts length_facts(const std::vector<int64_t>& offsets) {
  std::vector<int64_t> lengths;
  for (size_t d = 1; d < offsets.size(); ++d) lengths.push_back(offsets[d] - offsets[d - 1]);
  if (lengths.empty()) return nullptr;
  std::sort(lengths.begin(), lengths.end());
  Facts out{{"min", lengths.front()}};
  for (const int64_t p : {10, 50, 90, 99}) out[fmt::format("p{}", p)] = quantile(lengths, p);
  out["max"] = lengths.back();
  out["mean"] = static_cast<double>(offsets.back()) / static_cast<double>(lengths.size());
  return out;
}

// Documents of each family, in the order of its names; null where the shard names none.
Facts family_facts(const TokenShard& s) {
  const std::string& path = s.info.path;
  if (!h5_has(s.file, "family") || !h5_has(s.file, "family_names")) return nullptr;
  const std::vector<int64_t> family = h5_integers(path, s.file, "family", s.info.documents);
  const std::vector<std::string> names = h5_texts(path, s.file, "family_names");
  Facts out = Facts::object();
  for (const std::string& name : names) out[name] = 0;
  int64_t none = 0;
  for (size_t d = 0; d < family.size(); ++d) {
    if (family[d] < -1 || family[d] >= static_cast<int64_t>(names.size())) {
      fail_input(fmt::format("{}: family: document {} has {}, -1 to {} is expected", path, d, family[d],
                             static_cast<int64_t>(names.size()) - 1));
    }
    if (family[d] < 0) {
      ++none;
    } else {
      Facts& count = out[names[static_cast<size_t>(family[d])]];
      count = count.get<int64_t>() + 1;
    }
  }
  if (none > 0) out["(none)"] = none;
  return out;
}

// Text of one token: through the decode table, or its number.
class Decoder {
 public:
  explicit Decoder(const TokenShard& s) {
    if (!h5_has(s.file, "token_bytes")) return;
    at_ = h5_integers(s.info.path, s.file, "token_byte_offsets", s.info.vocab_size + 1);
    bytes_ = h5_bytes(s.info.path, s.file, "token_bytes");
  }
  std::string operator()(int32_t id) const {
    if (at_.empty()) return fmt::format("{} ", id);
    const size_t i = static_cast<size_t>(id);
    const bool known = id >= 0 && i + 1 < at_.size() && at_[i + 1] > at_[i];
    if (!known) return fmt::format("<{}>", id);
    return bytes_.substr(static_cast<size_t>(at_[i]), static_cast<size_t>(at_[i + 1] - at_[i]));
  }

 private:
  std::vector<int64_t> at_;
  std::string bytes_;
};

// The beginning of the first document, in runs of supervised and other tokens.
Facts first_document(const TokenShard& s) {
  if (s.info.documents == 0) return nullptr;
  const int64_t length = s.offsets[1], shown = std::min(length, kShownTokens);
  std::vector<int32_t> ids(static_cast<size_t>(shown));
  std::vector<uint8_t> mask(ids.size());
  read_ids(s, 0, shown, ids.data());
  read_mask(s, 0, shown, mask.data());
  const Decoder decode(s);
  Facts parts = Facts::array();
  for (size_t t = 0; t < ids.size();) {
    std::string text;
    const uint8_t on = mask[t];
    for (; t < ids.size() && mask[t] == on; ++t) text += decode(ids[t]);
    parts.push_back({{"supervised", on == 1}, {"text", printable(text)}});
  }
  return {{"tokens", length},
          {"shown_tokens", shown},
          {"decoded", h5_has(s.file, "token_bytes")},
          {"parts", parts}};
}

int64_t count_mask_tokens(const TokenShard& s) {
  std::vector<int32_t> ids;
  int64_t found = 0;
  for (int64_t first = 0; first < s.info.tokens; first += kPiece) {
    ids.resize(static_cast<size_t>(std::min(kPiece, s.info.tokens - first)));
    read_ids(s, first, static_cast<int64_t>(ids.size()), ids.data());
    found += std::count(ids.begin(), ids.end(), static_cast<int32_t>(s.info.mask_token_id));
  }
  return found;
}

}  // namespace

Facts token_shard_facts(const std::string& path, const InspectOptions& o) {
  if (path.ends_with(".partial"))
    fail_input(fmt::format("{}: an unfinished file (.partial) is not read", path));
  const TokenCorpus corpus({path}, 0);
  const TokenShardInfo& info = corpus.shards().front();
  const TokenShard s = open_token_shard(path);
  Facts facts{
      {"path", path},
      {"kind", "token shard"},
      {"problems", Facts::array()},
      {"bytes", std::filesystem::file_size(path)},
      {"attributes", h5_attributes(path, s.file)},
      {"documents", info.documents},
      {"tokens", info.tokens},
      {"supervised_tokens", info.supervised},
      {"supervised_share",
       info.tokens > 0 ? static_cast<double>(info.supervised) / static_cast<double>(info.tokens) : 0.0},
      {"documents_without_supervised_pair", info.unsupervised},
      {"lengths", length_facts(s.offsets)}};
  const Facts& declared = facts.at("attributes").at("mask_tokens_in_text");
  facts["mask_tokens_in_text"] = declared;
  attempt(facts, [&] { facts["families"] = family_facts(s); });
  attempt(facts, [&] { facts["first_document"] = first_document(s); });
  facts["verified"] = false;
  if (!o.verify) return facts;
  facts["verified"] = attempt(facts, [&] {
    corpus.validate(info.vocab_size);
    const int64_t found = count_mask_tokens(s), said = facts.at("mask_tokens_in_text").get<int64_t>();
    if (found != said)
      fail_input(fmt::format("{}: attribute mask_tokens_in_text is {}, input_ids has {}", path, said, found));
  });
  return facts;
}

std::string token_shard_text(const Facts& f) {
  const auto number = [&](const char* key) { return f.at(key).get<int64_t>(); };
  std::string out = fact_row("size", size_text(number("bytes")));
  const int64_t unusable = number("documents_without_supervised_pair");
  out += fact_row("documents", fmt::format("{}, {} of them without two consecutive supervised tokens{}",
                                           number("documents"), unusable,
                                           unusable > 0 ? " (training leaves those out)" : ""));
  out += fact_row("tokens",
                  fmt::format("{}, supervised {} ({:.1f} %)", number("tokens"), number("supervised_tokens"),
                              100 * f.at("supervised_share").get<double>()));
  if (const Facts& l = f.at("lengths"); !l.is_null()) {
    out += fact_row(
        "length",
        fmt::format("{} to {}, mean {:.1f}; 10 % up to {}, 50 % up to {}, 90 % up to {}, 99 % up to {}",
                    l.at("min").dump(), l.at("max").dump(), l.at("mean").get<double>(), l.at("p10").dump(),
                    l.at("p50").dump(), l.at("p90").dump(), l.at("p99").dump()));
  }
  if (const Facts families = value_or_null(f, "families"); !families.is_null()) {
    std::string text;
    for (const auto& [name, count] : families.items())
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", printable(name), count.dump());
    out += fact_row("families", text);
  }
  out += fact_row("mask token",
                  fmt::format("{}, {} times in the text", f.at("attributes").at("mask_token_id").dump(),
                              number("mask_tokens_in_text")));
  std::string attributes;
  for (const auto& [name, value] : f.at("attributes").items())
    attributes += fmt::format("{} = {}\n", printable(name), value_text(value));
  out += "  attributes\n" + indented(attributes, 4);
  if (const Facts d = value_or_null(f, "first_document"); !d.is_null()) {
    const int64_t tokens = d.at("tokens").get<int64_t>(), shown = d.at("shown_tokens").get<int64_t>();
    std::string text;
    for (const Facts& part : d.at("parts")) {
      const std::string piece = part.at("text").get<std::string>();
      text += part.at("supervised").get<bool>() ? "[[" + piece + "]]" : piece;
    }
    if (shown < tokens) text += fmt::format(" ... {} tokens more", tokens - shown);
    out += fmt::format("  first document  {} tokens{}, supervised parts in [[ ]]\n", tokens,
                       d.at("decoded").get<bool>() ? "" : " as ids (the shard has no decode table)");
    out += indented(text, 4);
  }
  if (f.at("verified").get<bool>())
    out += fact_row("verified", "ids, mask values, checksums, mask tokens in the text");
  return out;
}

}  // namespace slip
