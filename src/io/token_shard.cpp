#include "io/token_shard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "io/h5_items.hpp"

namespace slip {
namespace {

constexpr const char* kFormat = "slipstream-tokens";
constexpr const char* kFeatures = "slipstream-features";  // holds the same tokens, and features of them
constexpr int64_t kVersion = 1;
constexpr std::array kTexts = {"tokenizer_sha256", "template_sha256", "source", "writer"};
constexpr std::array kNumbers = {"vocab_size", "mask_token_id", "documents", "tokens", "supervised_tokens"};
constexpr std::array kPrepared = {"max_length",
                                  "prompts",
                                  "dropped_no_supervision",
                                  "dropped_too_long",
                                  "truncated_documents",
                                  "skipped_conversations",
                                  "mapped_conversations",
                                  "expanded_conversations",
                                  "bad_lines",
                                  "mask_tokens_in_text"};
constexpr int64_t kPiece = 1 << 20;  // elements read at a time

[[noreturn]] void bad(const std::string& path, const std::string& what) {
  fail_input(fmt::format("{}: {}", path, what));
}

void check_offsets(const std::string& path, const std::vector<int64_t>& offsets, int64_t tokens) {
  if (offsets.front() != 0)
    bad(path, fmt::format("doc_offsets: begins with {}, 0 is expected", offsets.front()));
  for (size_t d = 1; d < offsets.size(); ++d) {
    if (offsets[d] <= offsets[d - 1]) {
      bad(path, fmt::format("doc_offsets: not increasing at document {}: {} after {}", d - 1, offsets[d],
                            offsets[d - 1]));
    }
  }
  if (offsets.back() != tokens)
    bad(path, fmt::format("doc_offsets: ends at {}, input_ids has {} tokens", offsets.back(), tokens));
}

void check_decode_table(const std::string& path, const H5Id& file, int64_t vocab) {
  const bool table = h5_has(file, "token_bytes"), offsets = h5_has(file, "token_byte_offsets");
  if (!table && !offsets) return;
  const int64_t bytes = h5_length(h5_dataset(path, file, "token_bytes", H5T_STD_U8LE));
  const H5Id dataset = h5_dataset(path, file, "token_byte_offsets", H5T_STD_I64LE);
  if (h5_length(dataset) != vocab + 1) {
    bad(path, fmt::format("token_byte_offsets: {} values, {} are expected (vocab_size + 1)",
                          h5_length(dataset), vocab + 1));
  }
  const std::vector<int64_t> at = h5_integers(path, "token_byte_offsets", dataset);
  if (at.front() != 0 || !std::is_sorted(at.begin(), at.end()) || at.back() != bytes) {
    bad(path, fmt::format("token_byte_offsets: from 0 to {} without going back is expected, found {} to {}",
                          bytes, at.front(), at.back()));
  }
}

// CRC-32 of zlib (polynomial 0xEDB88320, bits reflected), one byte at a time.
uint32_t crc32(uint32_t crc, const void* data, size_t bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1u) != 0 ? 0xEDB88320u : 0u);
      t[i] = c;
    }
    return t;
  }();
  crc = ~crc;
  const auto* p = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) crc = table[(crc ^ p[i]) & 0xffu] ^ (crc >> 8);
  return ~crc;
}

void check_crc(const std::string& path, const char* name, const H5Id& dataset, uint32_t found) {
  if (H5Aexists(dataset.get(), "crc32") <= 0) return;
  const int64_t declared = h5_number(path, dataset, "crc32");
  if (found != declared)
    bad(path, fmt::format("dataset {}: crc32 is declared as {}, found {}", name, declared, found));
}

}  // namespace

TokenShard open_token_shard(const std::string& path) {
  h5_quiet();
  TokenShard shard;
  shard.file = open_h5(path);
  const std::string format = h5_text(path, shard.file, "format");
  const bool features = format == kFeatures;
  if (format != kFormat && !features)
    bad(path, fmt::format("format is \"{}\", \"{}\" is expected", format, kFormat));
  const int64_t version = h5_number(path, shard.file, "format_version");
  if (version != kVersion)
    bad(path, fmt::format("format_version is {}, this program reads {}", version, kVersion));
  for (const char* name : kTexts) h5_text(path, shard.file, name);
  for (const char* name : kNumbers) h5_number(path, shard.file, name);
  if (!features) h5_text(path, shard.file, "tokenizer");
  for (const char* name : kPrepared) {
    if (!features) h5_number(path, shard.file, name);
  }
  const auto number = [&](const char* name) { return h5_number(path, shard.file, name); };
  const auto text = [&](const char* name) { return h5_text(path, shard.file, name); };

  shard.ids = h5_dataset(path, shard.file, "input_ids", H5T_STD_I32LE);
  shard.mask = h5_dataset(path, shard.file, "loss_mask", H5T_STD_U8LE);
  const H5Id offsets = h5_dataset(path, shard.file, "doc_offsets", H5T_STD_I64LE);
  const int64_t tokens = h5_length(shard.ids), masks = h5_length(shard.mask),
                documents = h5_length(offsets) - 1;
  if (masks != tokens)
    bad(path, fmt::format("input_ids and loss_mask differ in length: {} vs {}", tokens, masks));
  if (documents < 0) bad(path, "doc_offsets is empty, at least the value 0 is expected");
  if (documents > tokens)
    bad(path, fmt::format("doc_offsets has {} documents, input_ids only {} tokens", documents, tokens));
  shard.offsets = h5_integers(path, "doc_offsets", offsets);
  check_offsets(path, shard.offsets, tokens);
  if (number("documents") != documents) {
    bad(path, fmt::format("attribute documents is {}, doc_offsets has {}", number("documents"), documents));
  }
  if (number("tokens") != tokens)
    bad(path, fmt::format("attribute tokens is {}, input_ids has {}", number("tokens"), tokens));

  const int64_t vocab = number("vocab_size"), mask_token = number("mask_token_id"),
                prompts = features ? 0 : number("prompts");
  if (vocab < 1 || vocab > INT32_MAX)
    bad(path, fmt::format("vocab_size is {}, 1 to {} is expected", vocab, INT32_MAX));
  if (mask_token < 0 || mask_token >= vocab) {
    bad(path, fmt::format("mask_token_id is {}, 0 to {} is expected (vocab_size is {})", mask_token,
                          vocab - 1, vocab));
  }
  if (prompts != 0 && prompts != 1) bad(path, fmt::format("prompts is {}, 0 or 1 is expected", prompts));
  check_decode_table(path, shard.file, vocab);
  if (features) {
    shard.ids_of_documents =
        h5_integers(path, "document_ids", h5_dataset(path, shard.file, "document_ids", H5T_STD_I64LE));
    if (static_cast<int64_t>(shard.ids_of_documents.size()) != documents)
      bad(path,
          fmt::format("document_ids: {} values, {} are expected", shard.ids_of_documents.size(), documents));
  }
  shard.info = {.path = path,
                .documents = documents,
                .tokens = tokens,
                .supervised = number("supervised_tokens"),
                .unsupervised = 0,
                .vocab_size = vocab,
                .mask_token_id = mask_token,
                .prompts = prompts == 1,
                .tokenizer_sha256 = text("tokenizer_sha256"),
                .template_sha256 = text("template_sha256"),
                .source = text("source")};
  return shard;
}

void read_ids(const TokenShard& s, int64_t first, int64_t count, int32_t* out) {
  h5_read(s.info.path, "input_ids", s.ids, H5T_NATIVE_INT32, first, count, out);
}

void read_mask(const TokenShard& s, int64_t first, int64_t count, uint8_t* out) {
  h5_read(s.info.path, "loss_mask", s.mask, H5T_NATIVE_UINT8, first, count, out);
}

void check_mask_values(const TokenShard& s, int64_t first, const std::vector<uint8_t>& values) {
  const auto wrong = std::find_if(values.begin(), values.end(), [](uint8_t v) { return v > 1; });
  if (wrong == values.end()) return;
  bad(s.info.path, fmt::format("loss_mask: {} is {}, 0 or 1 is expected",
                               place_of(s, first + (wrong - values.begin())), int{*wrong}));
}

void check_id_values(const TokenShard& s, int64_t first, const std::vector<int32_t>& values, int64_t vocab) {
  const auto wrong =
      std::find_if(values.begin(), values.end(), [&](int32_t v) { return v < 0 || v >= vocab; });
  if (wrong == values.end()) return;
  bad(s.info.path, fmt::format("input_ids: {} has token id {}, 0 to {} is expected ({} rows)",
                               place_of(s, first + (wrong - values.begin())), *wrong, vocab - 1, vocab));
}

void check_shard(const TokenShard& s, int64_t vocab) {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  uint32_t ids_crc = 0, mask_crc = 0;
  for (int64_t first = 0; first < s.info.tokens; first += kPiece) {
    const int64_t n = std::min(kPiece, s.info.tokens - first);
    ids.resize(static_cast<size_t>(n));
    mask.resize(static_cast<size_t>(n));
    read_ids(s, first, n, ids.data());
    check_id_values(s, first, ids, vocab);
    read_mask(s, first, n, mask.data());
    check_mask_values(s, first, mask);
    ids_crc = crc32(ids_crc, ids.data(), ids.size() * sizeof(int32_t));
    mask_crc = crc32(mask_crc, mask.data(), mask.size());
  }
  const std::string& path = s.info.path;
  check_crc(path, "input_ids", s.ids, ids_crc);
  check_crc(path, "loss_mask", s.mask, mask_crc);
  check_crc(path, "doc_offsets", H5Id(H5Dopen2(s.file.get(), "doc_offsets", H5P_DEFAULT), H5Dclose),
            crc32(0, s.offsets.data(), s.offsets.size() * sizeof(int64_t)));
}

std::string place_of(const TokenShard& s, int64_t token) {
  const int64_t document =
      std::upper_bound(s.offsets.begin(), s.offsets.end(), token) - s.offsets.begin() - 1;
  return fmt::format("document {}, position {}", document, token - s.offsets[static_cast<size_t>(document)]);
}

}  // namespace slip
