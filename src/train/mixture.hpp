// Which documents an epoch draws, and how often: a pure function of (seed, epoch, documents, weights), the
// same on every rank and after every resume.
//
// The documents of a source lie in an order that the seed gives once, like a shuffled pack of cards; an epoch
// takes the next weight * count of them and begins again at the first when the pack is through. So every
// epoch draws the same number of a source (up to one where the product is no whole number), a document comes
// floor(weight) or ceil(weight) times, and over several epochs no document comes twice more than another.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "io/sources.hpp"
#include "io/tokens.hpp"

namespace slip {

// The documents of an epoch, in no promised order (epoch_rows sorts); the second and later ones of a document
// count `copy` up from 0. Weights of 1 give `documents` as they are. Document::source indexes `sources`.
std::vector<TokenCorpus::Document> drawn(std::span<const TokenCorpus::Document> documents,
                                         std::span<const Source> sources, uint64_t seed, int64_t epoch);

// Documents and tokens of each source.
struct SourceSize {
  int64_t documents = 0, tokens = 0;
};
std::vector<SourceSize> source_sizes(std::span<const TokenCorpus::Document>, size_t sources);

// fail_usage for a source of which some epoch would draw no document at all (its weight is too small).
void check_weights(const std::string& key, std::span<const Source>, std::span<const SourceSize>);

// What a checkpoint keeps to notice other weights: "1" without any, else "2 for 480 documents, 0.5 for 96".
std::string weights_text(std::span<const Source>, std::span<const SourceSize>);

}  // namespace slip
