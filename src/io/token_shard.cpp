#include "io/token_shard.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace slip {
namespace {

constexpr const char* kFormat = "slipstream-tokens";
constexpr int64_t kVersion = 1;
constexpr std::array kTexts = {"tokenizer", "tokenizer_sha256", "template_sha256", "source", "writer"};
constexpr std::array kNumbers = {"vocab_size",
                                 "mask_token_id",
                                 "documents",
                                 "tokens",
                                 "supervised_tokens",
                                 "max_length",
                                 "prompts",
                                 "dropped_no_supervision",
                                 "dropped_too_long",
                                 "truncated_documents",
                                 "skipped_conversations",
                                 "mapped_conversations",
                                 "expanded_conversations",
                                 "bad_lines",
                                 "mask_tokens_in_text"};
constexpr int64_t kPiece = 1 << 20;    // elements read at a time
constexpr size_t kMaxText = 64 << 20;  // bytes of a text attribute

[[noreturn]] void bad(const std::string& path, const std::string& what) {
  fail_input(fmt::format("{}: {}", path, what));
}

H5Id open_file(const std::string& path) {
  struct stat s {};
  if (stat(path.c_str(), &s) != 0) bad(path, std::strerror(errno));
  if (!S_ISREG(s.st_mode)) bad(path, "a token shard is a file");
  const H5Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  if (!access || H5Pset_file_locking(access.get(), 0, 1) < 0)
    fail("HDF5: file access properties: " + h5_error());
  H5Id file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (file) return file;
  const std::string why = h5_error();
  const bool locked = why.find("lock") != std::string::npos;
  bad(path,
      fmt::format(
          "cannot be opened as HDF5 ({} bytes): {}{}", s.st_size, why,
          locked ? "; a finished shard needs no lock: HDF5_USE_FILE_LOCKING=FALSE switches them off" : ""));
}

std::string type_text(const H5Id& type) {
  const size_t size = H5Tget_size(type.get());
  switch (H5Tget_class(type.get())) {
    case H5T_INTEGER:
      return fmt::format("{}int{}", H5Tget_sign(type.get()) == H5T_SGN_NONE ? "u" : "", 8 * size);
    case H5T_FLOAT:
      return fmt::format("float{}", 8 * size);
    case H5T_STRING:
      return "text";
    default:
      return fmt::format("another type of {} bytes", size);
  }
}

H5Id open_attribute(const std::string& path, const H5Id& object, const std::string& name) {
  if (H5Aexists(object.get(), name.c_str()) <= 0)
    bad(path, fmt::format("attribute {} is missing: not a token shard, or one of another writer", name));
  H5Id a(H5Aopen(object.get(), name.c_str(), H5P_DEFAULT), H5Aclose);
  if (!a) bad(path, fmt::format("attribute {}: {}", name, h5_error()));
  const H5Id space(H5Aget_space(a.get()), H5Sclose);
  if (H5Sget_simple_extent_npoints(space.get()) != 1)
    bad(path, fmt::format("attribute {}: one value is expected", name));
  return a;
}

std::string text_attribute(const std::string& path, const H5Id& object, const std::string& name) {
  const H5Id a = open_attribute(path, object, name);
  const H5Id type(H5Aget_type(a.get()), H5Tclose);
  if (H5Tget_class(type.get()) != H5T_STRING)
    bad(path, fmt::format("attribute {}: text is expected, found {}", name, type_text(type)));
  const H5Id memory(H5Tcopy(type.get()), H5Tclose);
  std::string text;
  if (H5Tis_variable_str(type.get()) > 0) {
    char* value = nullptr;
    if (H5Aread(a.get(), memory.get(), &value) < 0)
      bad(path, fmt::format("attribute {}: {}", name, h5_error()));
    if (value != nullptr) text = value;
    H5free_memory(value);
  } else {
    const size_t size = H5Tget_size(type.get());
    if (size > kMaxText) bad(path, fmt::format("attribute {}: {} bytes of text", name, size));
    text.resize(size);
    if (H5Aread(a.get(), memory.get(), text.data()) < 0)
      bad(path, fmt::format("attribute {}: {}", name, h5_error()));
    text.resize(std::min(text.size(), text.find('\0')));
  }
  return text;
}

int64_t number_attribute(const std::string& path, const H5Id& object, const std::string& name) {
  const H5Id a = open_attribute(path, object, name);
  const H5Id type(H5Aget_type(a.get()), H5Tclose);
  if (H5Tget_class(type.get()) != H5T_INTEGER)
    bad(path, fmt::format("attribute {}: an integer is expected, found {}", name, type_text(type)));
  int64_t value = 0;
  if (H5Aread(a.get(), H5T_NATIVE_INT64, &value) < 0)
    bad(path, fmt::format("attribute {}: {}", name, h5_error()));
  return value;
}

int64_t length_of(const H5Id& dataset) {
  const H5Id space(H5Dget_space(dataset.get()), H5Sclose);
  return H5Sget_simple_extent_npoints(space.get());
}

bool has(const H5Id& file, const char* name) { return H5Lexists(file.get(), name, H5P_DEFAULT) > 0; }

// A dataset of one dimension and exactly this type. Deflate makes data at most 1032 times smaller: a length
// that the stored bytes cannot hold is a lie, and is refused before anything of that length is read.
H5Id open_dataset(const std::string& path, const H5Id& file, const char* name, hid_t type) {
  if (!has(file, name)) bad(path, fmt::format("dataset {} is missing", name));
  H5Id d(H5Dopen2(file.get(), name, H5P_DEFAULT), H5Dclose);
  if (!d) bad(path, fmt::format("dataset {}: {}", name, h5_error()));
  const H5Id found(H5Dget_type(d.get()), H5Tclose), wanted(H5Tcopy(type), H5Tclose);
  if (H5Tequal(found.get(), wanted.get()) <= 0) {
    bad(path, fmt::format("dataset {}: {} is expected, found {}", name, type_text(wanted), type_text(found)));
  }
  const H5Id space(H5Dget_space(d.get()), H5Sclose);
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (rank != 1) bad(path, fmt::format("dataset {}: one dimension is expected, found {}", name, rank));
  const int64_t length = length_of(d);
  const double bytes = static_cast<double>(length) * static_cast<double>(H5Tget_size(type));
  const double stored = static_cast<double>(H5Dget_storage_size(d.get()));
  if (bytes > 1100 * stored + 4096) {
    bad(path, fmt::format("dataset {}: {} values declared, {} bytes stored: it was not written to the end",
                          name, length, stored));
  }
  return d;
}

void read_slice(const std::string& path, const char* name, const H5Id& dataset, hid_t type, int64_t first,
                int64_t count, void* out) {
  if (count == 0) return;
  const hsize_t start = static_cast<hsize_t>(first), size = static_cast<hsize_t>(count);
  const H5Id memory(H5Screate_simple(1, &size, nullptr), H5Sclose),
      space(H5Dget_space(dataset.get()), H5Sclose);
  if (H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, nullptr, &size, nullptr) < 0 ||
      H5Dread(dataset.get(), type, memory.get(), space.get(), H5P_DEFAULT, out) < 0) {
    bad(path, fmt::format("dataset {}: reading {} values at {}: {}", name, count, first, h5_error()));
  }
}

std::vector<int64_t> read_all(const std::string& path, const char* name, const H5Id& dataset) {
  std::vector<int64_t> values(static_cast<size_t>(length_of(dataset)));
  read_slice(path, name, dataset, H5T_NATIVE_INT64, 0, static_cast<int64_t>(values.size()), values.data());
  return values;
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
  const bool table = has(file, "token_bytes"), offsets = has(file, "token_byte_offsets");
  if (!table && !offsets) return;
  const int64_t bytes = length_of(open_dataset(path, file, "token_bytes", H5T_STD_U8LE));
  const H5Id dataset = open_dataset(path, file, "token_byte_offsets", H5T_STD_I64LE);
  if (length_of(dataset) != vocab + 1) {
    bad(path, fmt::format("token_byte_offsets: {} values, {} are expected (vocab_size + 1)",
                          length_of(dataset), vocab + 1));
  }
  const std::vector<int64_t> at = read_all(path, "token_byte_offsets", dataset);
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
  const int64_t declared = number_attribute(path, dataset, "crc32");
  if (found != declared)
    bad(path, fmt::format("dataset {}: crc32 is declared as {}, found {}", name, declared, found));
}

}  // namespace

TokenShard open_token_shard(const std::string& path) {
  h5_quiet();
  TokenShard shard;
  shard.file = open_file(path);
  const std::string format = text_attribute(path, shard.file, "format");
  if (format != kFormat) bad(path, fmt::format("format is \"{}\", \"{}\" is expected", format, kFormat));
  const int64_t version = number_attribute(path, shard.file, "format_version");
  if (version != kVersion)
    bad(path, fmt::format("format_version is {}, this program reads {}", version, kVersion));
  for (const char* name : kTexts) text_attribute(path, shard.file, name);
  for (const char* name : kNumbers) number_attribute(path, shard.file, name);
  const auto number = [&](const char* name) { return number_attribute(path, shard.file, name); };
  const auto text = [&](const char* name) { return text_attribute(path, shard.file, name); };

  shard.ids = open_dataset(path, shard.file, "input_ids", H5T_STD_I32LE);
  shard.mask = open_dataset(path, shard.file, "loss_mask", H5T_STD_U8LE);
  const H5Id offsets = open_dataset(path, shard.file, "doc_offsets", H5T_STD_I64LE);
  const int64_t tokens = length_of(shard.ids), masks = length_of(shard.mask),
                documents = length_of(offsets) - 1;
  if (masks != tokens)
    bad(path, fmt::format("input_ids and loss_mask differ in length: {} vs {}", tokens, masks));
  if (documents < 0) bad(path, "doc_offsets is empty, at least the value 0 is expected");
  if (documents > tokens)
    bad(path, fmt::format("doc_offsets has {} documents, input_ids only {} tokens", documents, tokens));
  shard.offsets = read_all(path, "doc_offsets", offsets);
  check_offsets(path, shard.offsets, tokens);
  if (number("documents") != documents) {
    bad(path, fmt::format("attribute documents is {}, doc_offsets has {}", number("documents"), documents));
  }
  if (number("tokens") != tokens)
    bad(path, fmt::format("attribute tokens is {}, input_ids has {}", number("tokens"), tokens));

  const int64_t vocab = number("vocab_size"), mask_token = number("mask_token_id"),
                prompts = number("prompts");
  if (vocab < 1 || vocab > INT32_MAX)
    bad(path, fmt::format("vocab_size is {}, 1 to {} is expected", vocab, INT32_MAX));
  if (mask_token < 0 || mask_token >= vocab) {
    bad(path, fmt::format("mask_token_id is {}, 0 to {} is expected (vocab_size is {})", mask_token,
                          vocab - 1, vocab));
  }
  if (prompts != 0 && prompts != 1) bad(path, fmt::format("prompts is {}, 0 or 1 is expected", prompts));
  check_decode_table(path, shard.file, vocab);
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
  read_slice(s.info.path, "input_ids", s.ids, H5T_NATIVE_INT32, first, count, out);
}

void read_mask(const TokenShard& s, int64_t first, int64_t count, uint8_t* out) {
  read_slice(s.info.path, "loss_mask", s.mask, H5T_NATIVE_UINT8, first, count, out);
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
