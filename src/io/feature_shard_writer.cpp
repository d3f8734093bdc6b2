#include "io/feature_shard_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "io/durable.hpp"
#include "io/h5_items.hpp"

namespace slip {
namespace {

constexpr int64_t kChunkBytes = 8 << 20;
constexpr int64_t kFileBytes = 64 << 10;  // headers, attributes, indices of the small datasets

// Tokens of a chunk: the shard in equal chunks, so that the last one wastes less than a token for each chunk.
int64_t chunk_tokens(const FeatureSpec& spec, int64_t feature_rows) {
  const int64_t bytes = feature_rows * spec.bytes_per_token();
  const int64_t chunks =
      std::clamp<int64_t>((bytes + kChunkBytes / 2) / kChunkBytes, 1, std::max<int64_t>(1, feature_rows));
  return std::max<int64_t>(1, (feature_rows + chunks - 1) / chunks);
}

int64_t chunk_count(int64_t rows, int64_t chunk) { return (rows + chunk - 1) / chunk; }

}  // namespace

int64_t shard_bytes_bound(const FeatureSpec& spec, const DecodeTable& table, const ShardSize& s) {
  const int64_t chunk = chunk_tokens(spec, s.feature_rows), chunks = chunk_count(s.feature_rows, chunk);
  const int64_t features = chunks * chunk * spec.bytes_per_token();
  const int64_t deflated =
      spec.compress == "deflate" ? features / 1000 + chunks * 64 : 0;  // what does not shrink
  const int64_t small = s.tokens * 5 + (s.documents + 1) * 40 + static_cast<int64_t>(table.bytes.size()) +
                        static_cast<int64_t>(table.at.size()) * 8;
  const int64_t text = static_cast<int64_t>(spec.source.size() + spec.target.size());
  return features + deflated + chunks * 32 + small + small / 256 + text + kFileBytes;
}

struct FeatureShardWriter::Impl {
  std::string path, partial;
  FeatureSpec spec;
  H5Id file, features, type;
  int fd = -1;  // HDF5's own, for reserving and syncing
  bool filtered = false;
  int64_t planned_rows = 0, chunk = 1, rows = 0;  // rows handed to HDF5 or waiting in `open`
  std::vector<Bf16> open;                         // the chunk that is being filled
  int64_t open_rows = 0;
  FeatureTables tables;
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;

  [[noreturn]] void refuse(const std::string& what, const std::string& why) const {
    fail(fmt::format("{}: {}: {} ({} bytes are free there)", partial, what, why,
                     free_bytes(std::filesystem::path(partial).parent_path().string())));
  }
  void must(int64_t rc, const char* what) const {
    if (rc < 0) refuse(what, h5_error());
  }

  void write_chunk(const Bf16* data) {
    const hsize_t at[3] = {static_cast<hsize_t>(rows - open_rows), 0, 0};
    const int64_t values = chunk * spec.values_per_token();
    if (filtered) {
      const hsize_t left = static_cast<hsize_t>(std::min(chunk, planned_rows - (rows - open_rows)));
      const hsize_t size[3] = {left, spec.taps.size(), static_cast<hsize_t>(spec.hidden)};
      const H5Id memory(H5Screate_simple(3, size, nullptr), H5Sclose),
          space(H5Dget_space(features.get()), H5Sclose);
      must(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, at, nullptr, size, nullptr), "features");
      must(H5Dwrite(features.get(), type.get(), memory.get(), space.get(), H5P_DEFAULT, data),
           "writing features");
    } else {
      must(H5Dwrite_chunk(features.get(), H5P_DEFAULT, 0, at, static_cast<size_t>(values) * 2, data),
           "writing features");
      // The disk begins at once: the sync at the end then has little left to wait for.
      sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    }
  }

  void append(const Bf16* data, int64_t count) {
    const int64_t width = spec.values_per_token();
    while (count > 0) {
      if (open_rows == 0 && count >= chunk) {  // a whole chunk, without a copy
        write_chunk(data);
        rows += chunk, data += chunk * width, count -= chunk;
        continue;
      }
      const int64_t n = std::min(count, chunk - open_rows);
      std::memcpy(open.data() + open_rows * width, data, static_cast<size_t>(n * width) * 2);
      open_rows += n, rows += n, data += n * width, count -= n;
      if (open_rows == chunk) write_open();
    }
  }

  void write_open() {
    if (open_rows == 0) return;
    std::fill(open.begin() + open_rows * spec.values_per_token(), open.end(), Bf16{0});
    write_chunk(open.data());
    open_rows = 0;
  }
};

FeatureShardWriter::FeatureShardWriter(const std::string& path, const FeatureSpec& spec,
                                       const DecodeTable& table, const ShardSize& planned)
    : impl_(std::make_unique<Impl>()) {
  Impl& w = *impl_;
  h5_quiet();
  w.path = path;
  w.partial = path + ".partial";
  w.spec = spec;
  w.planned_rows = std::max<int64_t>(1, planned.feature_rows);  // HDF5 has no chunk in nothing
  w.filtered = spec.compress == "deflate";
  w.chunk = chunk_tokens(spec, planned.feature_rows);
  w.open.resize(static_cast<size_t>(w.chunk * spec.values_per_token()));
  const int64_t bytes = shard_bytes_bound(spec, table, planned);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int64_t free = free_bytes(folder.empty() ? "." : folder);
  if (free >= 0 && free < bytes) {
    fail(fmt::format(
        "{}: the next shard needs {} bytes, {} are free there; what is listed stays valid: make room and "
        "run again, or set dump.max_bytes",
        path, bytes, free));
  }
  const H5Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  check_h5(H5Pset_file_locking(access.get(), 0, 1), "file access");
  check_h5(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V110), "file access");
  w.file = H5Id(H5Fcreate(w.partial.c_str(), H5F_ACC_TRUNC, timeless(H5P_FILE_CREATE).get(), access.get()),
                H5Fclose);
  if (!w.file) w.refuse("cannot be created", std::strerror(errno));
  void* handle = nullptr;
  w.must(H5Fget_vfd_handle(w.file.get(), access.get(), &handle), "its file descriptor");
  w.fd = *static_cast<int*>(handle);
  // Best effort: not every file system can, and then only the check above stands.
  if (fallocate(w.fd, FALLOC_FL_KEEP_SIZE, 0, bytes) != 0 && errno == ENOSPC)
    w.refuse(fmt::format("the shard needs {} bytes", bytes), std::strerror(errno));

  h5_put(w.file, "format", std::string(kFeatureFormat));
  h5_put(w.file, "format_version", kFeatureVersion);
  put_spec(w.file, spec);
  w.type = spec.bf16 == "uint16" ? H5Id(H5Tcopy(H5T_STD_U16LE), H5Tclose) : bf16_type();
  if (spec.bf16 != "uint16")
    w.must(H5Tcommit2(w.file.get(), "bfloat16", w.type.get(), H5P_DEFAULT,
                      timeless(H5P_DATATYPE_CREATE).get(), H5P_DEFAULT),
           "type bfloat16");
  const hsize_t shape[3] = {static_cast<hsize_t>(w.planned_rows), spec.taps.size(),
                            static_cast<hsize_t>(spec.hidden)};
  const hsize_t chunk[3] = {static_cast<hsize_t>(w.chunk), shape[1], shape[2]};
  const H5Id space(H5Screate_simple(3, shape, shape), H5Sclose), how = timeless(H5P_DATASET_CREATE);
  w.must(H5Pset_chunk(how.get(), 3, chunk), "features");
  w.must(H5Pset_fill_time(how.get(), H5D_FILL_TIME_NEVER), "features");
  if (w.filtered) {
    w.must(H5Pset_shuffle(how.get()), "features");
    w.must(H5Pset_deflate(how.get(), 1), "features");
  }
  w.features = H5Id(
      H5Dcreate2(w.file.get(), "features", w.type.get(), space.get(), H5P_DEFAULT, how.get(), H5P_DEFAULT),
      H5Dclose);
  w.must(w.features.get(), "features");
  if (!table.at.empty()) {
    h5_put_dataset(w.file, "token_bytes", H5T_STD_U8LE, static_cast<int64_t>(table.bytes.size()),
                   table.bytes.data());
    h5_put_dataset(w.file, "token_byte_offsets", H5T_STD_I64LE, static_cast<int64_t>(table.at.size()),
                   table.at.data());
  }
}

FeatureShardWriter::~FeatureShardWriter() = default;

void FeatureShardWriter::add(std::span<const FeatureDocument> documents, const Bf16* features) {
  Impl& w = *impl_;
  const int64_t width = w.spec.values_per_token();
  const Bf16* run = features;  // features that follow one another are appended together
  int64_t run_rows = 0;
  for (const FeatureDocument& d : documents) {
    const int64_t tokens = static_cast<int64_t>(d.ids.size());
    require(d.feature_rows <= tokens && d.mask.size() == d.ids.size(),
            "FeatureShardWriter: a document's lengths");
    require(w.rows + run_rows + d.feature_rows <= w.planned_rows,
            "FeatureShardWriter: more features than planned");
    w.ids.insert(w.ids.end(), d.ids.begin(), d.ids.end());
    w.mask.insert(w.mask.end(), d.mask.begin(), d.mask.end());
    w.tables.doc_offsets.push_back(w.tables.doc_offsets.back() + tokens);
    w.tables.feature_offsets.push_back(w.tables.feature_offsets.back() + d.feature_rows);
    w.tables.document_ids.push_back(d.id);
    w.tables.tokens_xxh3.push_back(tokens_checksum(d.ids.data(), d.mask.data(), tokens));
    w.tables.features_xxh3.push_back(features_checksum(features, d.feature_rows * width * 2));
    run_rows += d.feature_rows;
    features += tokens * width;
    if (run + run_rows * width != features) {  // what follows is not next to it
      w.append(run, run_rows);
      run = features, run_rows = 0;
    }
  }
  w.append(run, run_rows);
}

ShardEntry FeatureShardWriter::finish() {
  Impl& w = *impl_;
  w.write_open();
  const FeatureTables& t = w.tables;
  if (w.rows < w.planned_rows) {
    const hsize_t shape[3] = {static_cast<hsize_t>(w.rows), w.spec.taps.size(),
                              static_cast<hsize_t>(w.spec.hidden)};
    w.must(H5Dset_extent(w.features.get(), shape), "features");
  }
  const auto put = [&](const char* name, hid_t type, const auto& values) {
    h5_put_dataset(w.file, name, type, static_cast<int64_t>(values.size()), values.data());
  };
  put("input_ids", H5T_STD_I32LE, w.ids);
  put("loss_mask", H5T_STD_U8LE, w.mask);
  put("doc_offsets", H5T_STD_I64LE, t.doc_offsets);
  put("feature_offsets", H5T_STD_I64LE, t.feature_offsets);
  put("document_ids", H5T_STD_I64LE, t.document_ids);
  put("features_xxh3", H5T_STD_U64LE, t.features_xxh3);
  put("tokens_xxh3", H5T_STD_U64LE, t.tokens_xxh3);
  ShardEntry e{std::filesystem::path(w.path).filename().string(),
               0,
               t.documents(),
               t.doc_offsets.back(),
               w.rows,
               t.content_xxh3()};
  h5_put(w.file, "documents", e.documents);
  h5_put(w.file, "tokens", e.tokens);
  h5_put(w.file, "supervised_tokens", static_cast<int64_t>(std::count(w.mask.begin(), w.mask.end(), 1)));
  h5_put(w.file, "feature_rows", e.feature_rows);
  h5_put(w.file, "content_xxh3", e.content_xxh3);
  w.features = H5Id();
  w.type = H5Id();
  w.must(H5Fflush(w.file.get(), H5F_SCOPE_LOCAL), "flushing");
  w.file = H5Id();
  const int fd = open(w.partial.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) w.refuse("opening it again", std::strerror(errno));
  e.bytes = lseek(fd, 0, SEEK_END);
  // What was reserved beyond the end goes back.
  const bool ok = ftruncate(fd, e.bytes) == 0 && fsync(fd) == 0;
  const int error = errno;
  close(fd);
  if (!ok) w.refuse("syncing", std::strerror(error));
  rename_durably(w.partial, w.path);
  return e;
}

}  // namespace slip
