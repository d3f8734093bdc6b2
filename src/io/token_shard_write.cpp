#include "io/token_shard_write.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/crc.hpp>

#include "io/durable.hpp"
#include "io/token_shard.hpp"

namespace slip {
namespace {

constexpr hsize_t kChunk = 65536;

[[noreturn]] void bad(const std::string& path, const std::string& what) {
  fail(fmt::format("{}: cannot be written: {}: {}", path, what, h5_error()));
}

struct File {
  std::string path;
  H5Id id;

  void attribute(const H5Id& object, const std::string& name, hid_t type, const void* value) const {
    const H5Id space(H5Screate(H5S_SCALAR), H5Sclose);
    const H5Id a(H5Acreate2(object.get(), name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT),
                 H5Aclose);
    if (!a || H5Awrite(a.get(), type, value) < 0) bad(path, "attribute " + name);
  }
  void number(const std::string& name, int64_t value) const { attribute(id, name, H5T_STD_I64LE, &value); }
  static H5Id text_type(size_t bytes) {
    H5Id type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type.get(), std::max<size_t>(bytes, 1));
    H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
    H5Tset_cset(type.get(), H5T_CSET_UTF8);
    return type;
  }
  void text(const std::string& name, const std::string& value) const {
    attribute(id, name, text_type(value.size()).get(), value.c_str());
  }
  H5Id dataset(const char* name, hid_t type, const void* values, size_t count) const {
    const hsize_t size = count;
    const H5Id space(H5Screate_simple(1, &size, nullptr), H5Sclose);
    const H5Id how(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    if (count > 0) {
      const hsize_t chunk = std::min(size, kChunk);
      if (H5Pset_chunk(how.get(), 1, &chunk) < 0 || H5Pset_shuffle(how.get()) < 0 ||
          H5Pset_deflate(how.get(), 4) < 0)
        bad(path, name);
    }
    H5Pset_obj_track_times(how.get(), false);
    H5Id d(H5Dcreate2(id.get(), name, type, space.get(), H5P_DEFAULT, how.get(), H5P_DEFAULT), H5Dclose);
    if (!d || (count > 0 && H5Dwrite(d.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0))
      bad(path, name);
    return d;
  }
  template <class T> void numbers(const char* name, hid_t type, const std::vector<T>& v) const {
    bytes(name, type, v.data(), v.size(), sizeof(T));
  }
  void bytes(const char* name, hid_t type, const void* values, size_t count, size_t size) const {
    const H5Id d = dataset(name, type, values, count);
    boost::crc_32_type crc;  // as zlib counts it
    if (count > 0) crc.process_bytes(values, count * size);
    const int64_t checksum = crc.checksum();
    attribute(d, "crc32", H5T_STD_I64LE, &checksum);
  }
};

std::string text_of(const std::string& path, const H5Id& file, const char* name) {
  const H5Id a(H5Aopen(file.get(), name, H5P_DEFAULT), H5Aclose);
  const H5Id type(H5Aget_type(a.get()), H5Tclose);
  if (H5Tis_variable_str(type.get()) > 0) {
    char* value = nullptr;
    if (H5Aread(a.get(), type.get(), &value) < 0) fail_input(fmt::format("{}: attribute {}", path, name));
    const std::string out = value == nullptr ? "" : value;
    H5free_memory(value);
    return out;
  }
  std::string out(H5Tget_size(type.get()), '\0');
  if (H5Aread(a.get(), type.get(), out.data()) < 0) fail_input(fmt::format("{}: attribute {}", path, name));
  out.resize(std::min(out.size(), out.find('\0')));
  return out;
}

}  // namespace

void TokenShardContent::add(const std::vector<int32_t>& ids, const std::vector<uint8_t>& mask,
                            int32_t family) {
  require(ids.size() == mask.size() && !ids.empty(), "TokenShardContent: a mask value for each token");
  bool two = false;
  for (size_t t = 0; t + 1 < mask.size(); ++t) two = two || (mask[t] != 0 && mask[t + 1] != 0);
  if (!two) {
    ++dropped_;
    return;
  }
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  mask_.insert(mask_.end(), mask.begin(), mask.end());
  supervised_ += std::count(mask.begin(), mask.end(), uint8_t{1});
  offsets_.push_back(static_cast<int64_t>(ids_.size()));
  family_.push_back(family);
}

void TokenShardContent::set_table(std::string bytes, std::vector<int64_t> offsets) {
  table_ = std::move(bytes);
  table_offsets_ = std::move(offsets);
}

ShardOrigin shard_origin(const std::string& path) {
  const TokenShard s = open_token_shard(path);  // all of them are there
  return {s.info.vocab_size,
          s.info.mask_token_id,
          text_of(path, s.file, "tokenizer"),
          s.info.tokenizer_sha256,
          s.info.template_sha256,
          s.info.source,
          "",
          {}};
}

void write_token_shard(const std::string& path, const ShardOrigin& text, const TokenShardContent& c) {
  h5_quiet();
  const std::string partial = path + ".partial";
  {
    const H5Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose), create(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
    H5Pset_libver_bounds(access.get(), H5F_LIBVER_EARLIEST, H5F_LIBVER_V110);
    const File f{partial,
                 H5Id(H5Fcreate(partial.c_str(), H5F_ACC_TRUNC, create.get(), access.get()), H5Fclose)};
    if (!f.id) bad(partial, "HDF5");
    f.text("format", "slipstream-tokens");
    f.number("format_version", 1);
    f.number("vocab_size", text.vocab_size);
    f.number("mask_token_id", text.mask_token_id);
    f.text("tokenizer", text.tokenizer);
    f.text("tokenizer_sha256", text.tokenizer_sha256);
    f.text("template_sha256", text.template_sha256);
    f.text("source", text.source);
    f.text("writer", text.writer);
    for (const auto& [name, value] : text.more) f.text(name, value);
    f.number("documents", c.documents());
    f.number("tokens", c.tokens());
    f.number("supervised_tokens", c.supervised_);
    f.number("dropped_no_supervision", c.dropped_);
    f.number("mask_tokens_in_text", std::count(c.ids_.begin(), c.ids_.end(), text.mask_token_id));
    for (const char* zero :
         {"max_length", "prompts", "dropped_too_long", "truncated_documents", "skipped_conversations",
          "mapped_conversations", "expanded_conversations", "bad_lines"})
      f.number(zero, 0);
    f.numbers("input_ids", H5T_STD_I32LE, c.ids_);
    f.numbers("loss_mask", H5T_STD_U8LE, c.mask_);
    f.numbers("doc_offsets", H5T_STD_I64LE, c.offsets_);
    if (!c.table_offsets_.empty()) {
      f.bytes("token_bytes", H5T_STD_U8LE, c.table_.data(), c.table_.size(), 1);
      f.numbers("token_byte_offsets", H5T_STD_I64LE, c.table_offsets_);
    }
    if (!c.family_names.empty()) {
      f.numbers("family", H5T_STD_I32LE, c.family_);
      size_t width = 1;
      for (const std::string& n : c.family_names) width = std::max(width, n.size());
      std::string names;
      for (std::string n : c.family_names) n.resize(width, '\0'), names += n;
      f.dataset("family_names", File::text_type(width).get(), names.data(), c.family_names.size());
    }
    if (H5Fflush(f.id.get(), H5F_SCOPE_GLOBAL) < 0) bad(partial, "flush");
  }
  const int fd = open(partial.c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = fd >= 0 && fsync(fd) == 0;
  if (fd >= 0) close(fd);
  if (!synced) fail(fmt::format("{}: cannot be synced to the disk", partial));
  rename_durably(partial, path);
}

}  // namespace slip
