#include "train/mixture.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.hpp"
#include "core/random.hpp"

namespace slip {
namespace {

using Document = TokenCorpus::Document;
constexpr uint64_t kPackStream = fnv1a64("mixture");

// floor(epochs * weight * count) mod count: where the pack of a source stands after so many epochs. In whole
// numbers; the product itself would not fit.
int64_t pack_position(int64_t epochs, int64_t weight, int64_t count) {
  const int64_t per_epoch = weight * count, whole = per_epoch / kWeightOnce, rest = per_epoch % kWeightOnce;
  return (epochs % count * (whole % count) + epochs * rest / kWeightOnce) % count;
}

// Documents that an epoch takes.
int64_t pack_taken(int64_t epoch, int64_t weight, int64_t count) {
  const int64_t per_epoch = weight * count, rest = per_epoch % kWeightOnce;
  return per_epoch / kWeightOnce + (epoch + 1) * rest / kWeightOnce - epoch * rest / kWeightOnce;
}

void shuffle(std::vector<Document>& pack, uint64_t seed) {
  const auto key = [&](const Document& d) {
    return std::pair{random_u64(seed ^ kPackStream, 0, static_cast<uint64_t>(d.id)), d.id};
  };
  std::sort(pack.begin(), pack.end(), [&](const Document& a, const Document& b) { return key(a) < key(b); });
}

}  // namespace

std::vector<Document> drawn(std::span<const Document> documents, std::span<const Source> sources,
                            uint64_t seed, int64_t epoch) {
  if (std::all_of(sources.begin(), sources.end(), [](const Source& s) { return s.weight == kWeightOnce; }))
    return {documents.begin(), documents.end()};
  std::vector<std::vector<Document>> packs(sources.size());
  for (const Document& d : documents) packs.at(static_cast<size_t>(d.source)).push_back(d);
  std::vector<Document> out;
  for (size_t s = 0; s < packs.size(); ++s) {
    std::vector<Document>& pack = packs[s];
    if (pack.empty()) continue;
    const int64_t count = static_cast<int64_t>(pack.size()), weight = sources[s].weight,
                  first = pack_position(epoch, weight, count), taken = pack_taken(epoch, weight, count);
    if (weight % kWeightOnce != 0) shuffle(pack, seed);  // whole weights take every document alike
    for (int64_t i = 0; i < taken; ++i) {
      Document d = pack[static_cast<size_t>((first + i) % count)];
      d.copy = static_cast<int32_t>(i / count);
      out.push_back(d);
    }
  }
  return out;
}

std::vector<SourceSize> source_sizes(std::span<const Document> documents, size_t sources) {
  std::vector<SourceSize> out(sources);
  for (const Document& d : documents) {
    SourceSize& s = out.at(static_cast<size_t>(d.source));
    ++s.documents;
    s.tokens += d.length;
  }
  return out;
}

void check_weights(const std::string& key, std::span<const Source> sources,
                   std::span<const SourceSize> sizes) {
  for (size_t i = 0; i < sources.size(); ++i) {
    const int64_t count = sizes[i].documents, weight = sources[i].weight;
    if (count == 0 || weight * count >= kWeightOnce) continue;
    fail_usage(
        fmt::format("{}: '{}@{}': of its {} documents an epoch would draw {:.2g}; a weight of at least "
                    "{:.2g} draws one",
                    key, sources[i].pattern, weight_text(weight), count,
                    static_cast<double>(weight * count) / static_cast<double>(kWeightOnce),
                    1 / static_cast<double>(count)));
  }
}

std::string weights_text(std::span<const Source> sources, std::span<const SourceSize> sizes) {
  std::string out;
  bool any = false;
  for (size_t i = 0; i < sources.size(); ++i) {
    any = any || sources[i].weight != kWeightOnce;
    out += fmt::format("{}{} for {} documents", i == 0 ? "" : ", ", weight_text(sources[i].weight),
                       sizes[i].documents);
  }
  return any ? out : "1";
}

}  // namespace slip
