#include "io/feature_shard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "io/h5_items.hpp"

namespace slip {
namespace {

[[noreturn]] void bad(const std::string& path, const std::string& what) {
  fail_input(fmt::format("{}: {}", path, what));
}

struct Chunk {
  int64_t address, bytes;
};

void check_offsets(const std::string& path, const char* name, const std::vector<int64_t>& at, int64_t end,
                   bool strictly) {
  if (at.empty() || at.front() != 0) bad(path, fmt::format("{}: must begin with 0", name));
  for (size_t d = 1; d < at.size(); ++d) {
    if (at[d] < at[d - 1] || (strictly && at[d] == at[d - 1]))
      bad(path, fmt::format("{}: not increasing at document {}: {} after {}", name, d - 1, at[d], at[d - 1]));
  }
  if (at.back() != end) bad(path, fmt::format("{}: ends at {}, {} is expected", name, at.back(), end));
}

std::vector<uint64_t> read_sums(const std::string& path, const H5Id& file, const char* name, int64_t count) {
  const H5Id d = h5_dataset(path, file, name, H5T_STD_U64LE);
  if (h5_length(d) != count)
    bad(path, fmt::format("{}: {} values, {} are expected", name, h5_length(d), count));
  std::vector<uint64_t> out(static_cast<size_t>(count));
  h5_read(path, name, d, H5T_NATIVE_UINT64, 0, count, out.data());
  return out;
}

// A virtual dataset reads as fill values where a source is missing, and nobody is told: so each is looked at.
void check_sources(const std::string& path, const H5Id& dataset) {
  const H5Id how(H5Dget_create_plist(dataset.get()), H5Pclose);
  size_t count = 0;
  if (H5Pget_virtual_count(how.get(), &count) < 0) bad(path, "features: " + h5_error());
  for (size_t i = 0; i < count; ++i) {
    const ssize_t size = H5Pget_virtual_filename(how.get(), i, nullptr, 0);
    std::string name(static_cast<size_t>(std::max<ssize_t>(size, 0)) + 1, '\0');
    if (size < 0 || H5Pget_virtual_filename(how.get(), i, name.data(), name.size()) < 0)
      bad(path, "features: " + h5_error());
    name.pop_back();
    const std::filesystem::path source = std::filesystem::path(path).parent_path() / name;
    std::error_code ignored;
    if (!std::filesystem::exists(source, ignored))
      bad(path, fmt::format("its shard {} is missing: HDF5 would show fill values for it without an error",
                            source.string()));
  }
}

}  // namespace

struct FeatureShard::Impl {
  H5Id file, features, type, ids, mask;
  std::unique_ptr<InputFile> raw;
  std::vector<Chunk> chunks;  // empty: read through HDF5
  int64_t chunk = 0;          // tokens
};

std::string h5_format(const std::string& path) {
  h5_quiet();
  const H5Id file = open_h5(path);
  if (H5Aexists(file.get(), "format") <= 0) return "";
  return h5_text(path, file, "format");
}

FeatureShard::FeatureShard(const std::string& path) : impl_(std::make_unique<Impl>()) {
  Impl& s = *impl_;
  h5_quiet();
  s.file = open_h5(path);
  const std::string format = h5_text(path, s.file, "format");
  info_.path = path;
  info_.all = format == kFeatureAllFormat;
  if (format != kFeatureFormat && !info_.all)
    bad(path, fmt::format("format is \"{}\", \"{}\" is expected", format, kFeatureFormat));
  const int64_t version = h5_number(path, s.file, "format_version");
  if (version != kFeatureVersion)
    bad(path, fmt::format("format_version is {}, this program reads {}", version, kFeatureVersion));
  info_.spec = read_spec(path, s.file);
  const FeatureSpec& spec = info_.spec;
  if (spec.taps.empty() || spec.hidden < 1 || spec.hidden > 1 << 24 || spec.taps.size() > 4096)
    bad(path, fmt::format("{} taps of hidden size {} cannot be", spec.taps.size(), spec.hidden));
  if (spec.dtype != "bfloat16")
    bad(path, fmt::format("dtype is \"{}\", \"bfloat16\" is expected", spec.dtype));
  info_.documents = h5_number(path, s.file, "documents");
  info_.tokens = h5_number(path, s.file, "tokens");
  info_.supervised = h5_number(path, s.file, "supervised_tokens");
  info_.feature_rows = h5_number(path, s.file, "feature_rows");
  info_.content_xxh3 = h5_text(path, s.file, "content_xxh3");
  info_.bytes = static_cast<int64_t>(std::filesystem::file_size(path));

  const auto integers = [&](const char* name) {
    return h5_integers(path, name, h5_dataset(path, s.file, name, H5T_STD_I64LE));
  };
  tables_.doc_offsets = integers("doc_offsets");
  tables_.feature_offsets = integers("feature_offsets");
  tables_.document_ids = integers("document_ids");
  const int64_t documents = tables_.documents();
  if (documents != info_.documents)
    bad(path, fmt::format("attribute documents is {}, document_ids has {}", info_.documents, documents));
  for (const auto& [name, at, end] : {std::tuple{"doc_offsets", &tables_.doc_offsets, info_.tokens},
                                      {"feature_offsets", &tables_.feature_offsets, info_.feature_rows}}) {
    if (static_cast<int64_t>(at->size()) != documents + 1)
      bad(path,
          fmt::format("{}: {} values, {} are expected (documents + 1)", name, at->size(), documents + 1));
    check_offsets(path, name, *at, end, at == &tables_.doc_offsets);
  }
  for (size_t d = 0; d < static_cast<size_t>(documents); ++d) {
    const int64_t features = tables_.feature_offsets[d + 1] - tables_.feature_offsets[d],
                  tokens = tables_.doc_offsets[d + 1] - tables_.doc_offsets[d];
    if (features > tokens)
      bad(path, fmt::format("document {}: features of {} tokens, it has {}", d, features, tokens));
  }
  tables_.features_xxh3 = read_sums(path, s.file, "features_xxh3", documents);
  tables_.tokens_xxh3 = read_sums(path, s.file, "tokens_xxh3", documents);
  if (const std::string found = tables_.content_xxh3(); found != info_.content_xxh3)
    bad(path,
        fmt::format("content_xxh3 is declared as {}, found {}: an offset, an id or a checksum was changed",
                    info_.content_xxh3, found));

  if (!h5_has(s.file, "features")) bad(path, "dataset features is missing");
  s.features = H5Id(H5Dopen2(s.file.get(), "features", H5P_DEFAULT), H5Dclose);
  if (!s.features) bad(path, "dataset features: " + h5_error());
  s.type = H5Id(H5Dget_type(s.features.get()), H5Tclose);
  const H5Id wanted = spec.bf16 == "uint16" ? H5Id(H5Tcopy(H5T_STD_U16LE), H5Tclose) : bf16_type();
  if (H5Tequal(s.type.get(), wanted.get()) <= 0)
    bad(path, fmt::format("dataset features: the type is not that of bf16 = {}, found {}", spec.bf16,
                          h5_type_text(s.type)));
  const H5Id space(H5Dget_space(s.features.get()), H5Sclose);
  hsize_t shape[3] = {0, 0, 0};
  if (H5Sget_simple_extent_ndims(space.get()) != 3)
    bad(path, "dataset features: three dimensions are expected");
  H5Sget_simple_extent_dims(space.get(), shape, nullptr);
  if (shape[0] != static_cast<hsize_t>(info_.feature_rows) || shape[1] != spec.taps.size() ||
      shape[2] != static_cast<hsize_t>(spec.hidden)) {
    bad(path,
        fmt::format(
            "dataset features: shape [{}, {}, {}], [{}, {}, {}] is expected (feature_rows, taps, hidden)",
            shape[0], shape[1], shape[2], info_.feature_rows, spec.taps.size(), spec.hidden));
  }
  const H5Id how(H5Dget_create_plist(s.features.get()), H5Pclose);
  if (info_.all) {
    check_sources(path, s.features);
    return;
  }
  s.ids = h5_dataset(path, s.file, "input_ids", H5T_STD_I32LE);
  s.mask = h5_dataset(path, s.file, "loss_mask", H5T_STD_U8LE);
  if (h5_length(s.ids) != info_.tokens || h5_length(s.mask) != info_.tokens)
    bad(path, fmt::format("input_ids has {} values, loss_mask {}, attribute tokens says {}", h5_length(s.ids),
                          h5_length(s.mask), info_.tokens));
  hsize_t chunk[3] = {0, 0, 0};
  if (H5Pget_layout(how.get()) != H5D_CHUNKED || H5Pget_chunk(how.get(), 3, chunk) != 3 ||
      chunk[1] != shape[1] || chunk[2] != shape[2])
    bad(path, "dataset features: chunks of whole tokens are expected");
  s.chunk = static_cast<int64_t>(chunk[0]);
  s.raw = std::make_unique<InputFile>(path);
  const bool plain = H5Pget_nfilters(how.get()) == 0;
  const int64_t bytes = s.chunk * spec.bytes_per_token();
  if (!plain) {  // HDF5 keeps 1 MiB unless told: every piece of a chunk would unpack all of it again
    const H5Id access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
    H5Pset_chunk_cache(access.get(), H5D_CHUNK_CACHE_NSLOTS_DEFAULT, static_cast<size_t>(2 * bytes),
                       H5D_CHUNK_CACHE_W0_DEFAULT);
    s.features = H5Id();  // while it is open, opening it again changes nothing
    s.features = H5Id(H5Dopen2(s.file.get(), "features", access.get()), H5Dclose);
    if (!s.features) bad(path, "dataset features: " + h5_error());
  }
  for (int64_t first = 0; first < info_.feature_rows; first += s.chunk) {
    const hsize_t at[3] = {static_cast<hsize_t>(first), 0, 0};
    unsigned skipped = 0;
    haddr_t address = HADDR_UNDEF;
    hsize_t size = 0;
    if (H5Dget_chunk_info_by_coord(s.features.get(), at, &skipped, &address, &size) < 0 ||
        address == HADDR_UNDEF)
      bad(path, fmt::format("dataset features: the chunk of token {} was not written", first));
    if ((plain && static_cast<int64_t>(size) != bytes) || address > static_cast<haddr_t>(s.raw->size()) ||
        size > static_cast<hsize_t>(s.raw->size()) - address) {
      bad(path, fmt::format("dataset features: the chunk of token {} is {} bytes at {}, a file of {} bytes "
                            "is too short for it: it was cut",
                            first, size, address, s.raw->size()));
    }
    if (plain) s.chunks.push_back({static_cast<int64_t>(address), static_cast<int64_t>(size)});
  }
}

FeatureShard::~FeatureShard() = default;
FeatureShard::FeatureShard(FeatureShard&&) noexcept = default;

void FeatureShard::read_features(int64_t first, int64_t count, Bf16* out) const {
  const Impl& s = *impl_;
  require(first >= 0 && count >= 0 && first + count <= info_.feature_rows,
          "read_features: outside the shard");
  const int64_t width = info_.spec.values_per_token();
  if (s.chunks.empty() && count > 0) {
    const hsize_t at[3] = {static_cast<hsize_t>(first), 0, 0};
    const hsize_t size[3] = {static_cast<hsize_t>(count), info_.spec.taps.size(),
                             static_cast<hsize_t>(info_.spec.hidden)};
    const H5Id memory(H5Screate_simple(3, size, nullptr), H5Sclose),
        space(H5Dget_space(s.features.get()), H5Sclose);
    if (H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, at, nullptr, size, nullptr) < 0 ||
        H5Dread(s.features.get(), s.type.get(), memory.get(), space.get(), H5P_DEFAULT, out) < 0)
      bad(info_.path, fmt::format("dataset features: reading {} tokens at {}: {}", count, first, h5_error()));
    return;
  }
  while (count > 0) {
    const int64_t in_chunk = first % s.chunk, n = std::min(count, s.chunk - in_chunk);
    const Chunk& c = s.chunks[static_cast<size_t>(first / s.chunk)];
    s.raw->read(c.address + in_chunk * width * 2, n * width * 2, out);
    first += n, count -= n, out += n * width;
  }
}

void FeatureShard::read_document(int64_t d, Bf16* out) const {
  const size_t i = static_cast<size_t>(d);
  const int64_t first = tables_.feature_offsets.at(i), count = tables_.feature_offsets.at(i + 1) - first;
  read_features(first, count, out);
  const uint64_t found = features_checksum(out, count * info_.spec.bytes_per_token());
  if (found != tables_.features_xxh3[i]) {
    bad(info_.path,
        fmt::format("dataset features, document {} (id {}): checksum {:016x} is declared, found {:016x}", d,
                    tables_.document_ids[i], tables_.features_xxh3[i], found));
  }
}

void FeatureShard::read_tokens(int64_t d, std::vector<int32_t>& ids, std::vector<uint8_t>& mask) const {
  const size_t i = static_cast<size_t>(d);
  const int64_t first = tables_.doc_offsets.at(i), count = tables_.doc_offsets.at(i + 1) - first;
  ids.resize(static_cast<size_t>(count));
  mask.resize(static_cast<size_t>(count));
  require(!info_.all, "read_tokens: not from the virtual file");
  h5_read(info_.path, "input_ids", impl_->ids, H5T_NATIVE_INT32, first, count, ids.data());
  h5_read(info_.path, "loss_mask", impl_->mask, H5T_NATIVE_UINT8, first, count, mask.data());
  const uint64_t found = tokens_checksum(ids.data(), mask.data(), count);
  if (found != tables_.tokens_xxh3[i]) {
    bad(info_.path, fmt::format("datasets input_ids and loss_mask, document {} (id {}): checksum {:016x} is "
                                "declared, found {:016x}",
                                d, tables_.document_ids[i], tables_.tokens_xxh3[i], found));
  }
}

void FeatureShard::verify(const std::function<void(int64_t)>& progress) const {
  std::vector<Bf16> features;
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  for (int64_t d = 0; d < info_.documents; ++d) {
    const size_t i = static_cast<size_t>(d);
    const int64_t count = tables_.feature_offsets[i + 1] - tables_.feature_offsets[i];
    features.resize(static_cast<size_t>(count * info_.spec.values_per_token()));
    read_document(d, features.data());
    if (!info_.all) read_tokens(d, ids, mask);
    progress(count * info_.spec.bytes_per_token());
  }
}

}  // namespace slip
