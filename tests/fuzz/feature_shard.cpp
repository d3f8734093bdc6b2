// Feature shards whose content lies: the bytes are a list of changes to a good shard, made through HDF5 (its
// own structure is not changed: see README.md), and at the end perhaps to its features or its length. What is
// accepted is read by every way that there is.
#include "io/feature_shard.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "fuzz/changes.hpp"
#include "fuzz/target.hpp"
#include "io/feature_files.hpp"
#include "io/feature_shard_writer.hpp"
#include "io/h5_items.hpp"
#include "io/tokens.hpp"

namespace {

using namespace slip;
using slip::testing::Changes;

constexpr int kKinds = 4;  // of good shards: all or supervised, float or uint16, plain or deflated
const std::vector<std::string>& attributes() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> names = {"format",       "format_version",    "documents",
                                      "tokens",       "supervised_tokens", "feature_rows",
                                      "content_xxh3", "content_xxh3"};
    const FeatureSpec spec;
    spec_fields(spec, [&](const char* name, const auto&) { names.push_back(name); });
    return names;
  }();
  return all;
}
constexpr const char* kDatasets[] = {"input_ids",    "loss_mask",     "doc_offsets", "feature_offsets",
                                     "document_ids", "features_xxh3", "tokens_xxh3"};

std::string good_shard(int kind) {
  FeatureSpec spec;
  spec.target = "t", spec.architecture = "qwen3", spec.precision = "fp32", spec.rope_type = "default";
  spec.target_layers = 4, spec.taps = {0, 2}, spec.hidden = 8, spec.vocab_size = 256, spec.rope_theta = 1e4;
  spec.span = kind % 2 == 0 ? "all" : "supervised";
  spec.bf16 = kind == 2 ? "uint16" : "float", spec.compress = kind == 3 ? "deflate" : "none";
  const std::string path = slip::testing::file_of({nullptr, 0}, "good-" + std::to_string(kind) + ".h5");
  const std::vector<int64_t> lengths = {3, 1, 5};
  FeatureShardWriter w(path, spec, {}, {3, 9, 9});
  for (size_t d = 0; d < lengths.size(); ++d) {
    const std::vector<int32_t> ids(static_cast<size_t>(lengths[d]), static_cast<int32_t>(d));
    const std::vector<uint8_t> mask(ids.size(), 1);
    const std::vector<Bf16> features(ids.size() * 16, Bf16{static_cast<uint16_t>(0x3f80 + d)});
    const FeatureDocument document{
        static_cast<int64_t>(7 * d), ids, mask,
        spec.span == "all" ? lengths[d] : supervised_span(mask.data(), lengths[d])};
    w.add({&document, 1}, features.data());
  }
  w.finish();
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void put_attribute(const H5Id& file, const std::string& name, Changes& c) {
  if (H5Aexists(file.get(), name.c_str()) > 0) H5Adelete(file.get(), name.c_str());
  switch (c.byte() % 6) {
    case 0:
      break;
    case 1:
      h5_put(file, name, c.number());
      break;
    case 2:
      h5_put(file, name, std::string(c.byte() % 64, static_cast<char>(c.byte())));
      break;
    case 3:
      h5_put(file, name, static_cast<double>(c.number()));
      break;
    case 4: {
      std::vector<int64_t> values(1 + c.byte() % 8);
      for (int64_t& v : values) v = c.number();
      h5_put(file, name, values);
      break;
    }
    case 5: {
      static const std::vector<std::string> words = {"all",  "supervised", "float",        "uint16",
                                                     "none", "deflate",    kFeatureFormat, kFeatureAllFormat};
      h5_put(file, name, words[c.byte() % words.size()]);
      break;
    }
  }
}

void put_dataset(const H5Id& file, const char* name, Changes& c) {
  const hid_t types[] = {H5T_STD_I32LE, H5T_STD_U8LE,   H5T_STD_I64LE,
                         H5T_STD_U64LE, H5T_IEEE_F32LE, H5T_STD_I64BE};
  std::vector<int64_t> values;
  hid_t type = H5T_STD_I64LE;
  if (h5_has(file, name)) {
    const H5Id d(H5Dopen2(file.get(), name, H5P_DEFAULT), H5Dclose);
    values.resize(static_cast<size_t>(h5_length(d)));
    if (!values.empty()) H5Dread(d.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    for (size_t i = 0; i < std::size(kDatasets); ++i) {
      const hid_t own[] = {types[0], types[1], types[2], types[2], types[2], types[3], types[3]};
      if (name == std::string(kDatasets[i])) type = own[i];
    }
    H5Ldelete(file.get(), name, H5P_DEFAULT);
  }
  const uint8_t how = c.byte();
  if (how < 8) return;  // it is missing
  if (how < 32) type = types[how % std::size(types)];
  if (how >= 24) c.of(values);
  const hsize_t length[2] = {values.size(), 1};
  const H5Id space(H5Screate_simple(how == 255 ? 2 : 1, length, nullptr), H5Sclose),
      create(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  if (how % 2 == 0 && !values.empty()) H5Pset_chunk(create.get(), how == 255 ? 2 : 1, length);
  const H5Id d(H5Dcreate2(file.get(), name, type, space.get(), H5P_DEFAULT, create.get(), H5P_DEFAULT),
               H5Dclose);
  if (!values.empty() && how != 254)
    H5Dwrite(d.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
}

// Another shape, type, layout; written as a whole, in part, or not at all.
void put_features(const H5Id& file, Changes& c) {
  H5Ldelete(file.get(), "features", H5P_DEFAULT);
  const hsize_t big[] = {0, 1, 2, 7, 8, 9, 65536, hsize_t{1} << 40};
  const auto extent = [&](hsize_t usual) {
    const uint8_t b = c.byte();
    return b < 200 ? usual : big[b % 8];
  };
  const hsize_t shape[3] = {extent(9), extent(2), extent(8)};
  const int rank = c.byte() < 240 ? 3 : 2;
  const H5Id space(H5Screate_simple(rank, shape, nullptr), H5Sclose),
      create(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  const hsize_t chunk[3] = {extent(4), extent(2), extent(8)};
  if (c.byte() < 220) H5Pset_chunk(create.get(), rank, chunk);
  if (c.byte() >= 220) H5Pset_deflate(create.get(), 1);
  const H5Id type = c.byte() < 200 ? bf16_type() : H5Id(H5Tcopy(H5T_STD_U16LE), H5Tclose);
  const H5Id d(
      H5Dcreate2(file.get(), "features", type.get(), space.get(), H5P_DEFAULT, create.get(), H5P_DEFAULT),
      H5Dclose);
  // Nothing is written where a size is out of this world: HDF5 1.10.8 itself crashes in H5Dwrite there.
  if (!d || rank != 3 || *std::max_element(shape, shape + 3) > 65536 ||
      *std::max_element(chunk, chunk + 3) > 65536)
    return;
  const std::vector<uint16_t> values(9 * 16, 0x3f80);
  const hsize_t at[3] = {0, 0, 0}, size[3] = {c.byte() % 10u, 2, 8};
  const H5Id memory(H5Screate_simple(3, size, nullptr), H5Sclose);
  if (size[0] > 0 && H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, at, nullptr, size, nullptr) >= 0)
    H5Dwrite(d.get(), type.get(), memory.get(), space.get(), H5P_DEFAULT, values.data());
}

// The checksum over the tables made to fit again: what hides behind it must be found by other means.
void sign(const H5Id& file, const std::string& path) {
  FeatureTables t;
  try {
    for (auto& [name, into] : {std::pair{"doc_offsets", &t.doc_offsets},
                               {"feature_offsets", &t.feature_offsets},
                               {"document_ids", &t.document_ids}})
      *into = h5_integers(path, name, h5_dataset(path, file, name, H5T_STD_I64LE));
    for (auto& [name, into] :
         {std::pair{"features_xxh3", &t.features_xxh3}, {"tokens_xxh3", &t.tokens_xxh3}}) {
      const H5Id d = h5_dataset(path, file, name, H5T_STD_U64LE);
      into->resize(static_cast<size_t>(h5_length(d)));
      h5_read(path, name, d, H5T_NATIVE_UINT64, 0, h5_length(d), into->data());
    }
  } catch (const Error&) {
    return;
  }
  if (H5Aexists(file.get(), "content_xxh3") > 0) H5Adelete(file.get(), "content_xxh3");
  h5_put(file, "content_xxh3", t.content_xxh3());
}

void read_all(const std::string& path) {
  std::vector<Bf16> taps, scratch;
  const FeatureFiles files({path});
  const FeatureShard& s = files.shards().front();
  const FeatureTables& t = s.tables();
  int64_t read = 0;
  s.verify([&](int64_t bytes) { read += bytes; });
  if (read != s.info().feature_rows * s.info().spec.bytes_per_token()) std::abort();
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  for (int64_t d = 0; d < t.documents(); ++d) {
    s.read_tokens(d, ids, mask);
    taps.resize(ids.size() * static_cast<size_t>(s.info().spec.values_per_token()));
    const int64_t stride = static_cast<int64_t>(ids.size()) * s.info().spec.hidden;
    const int64_t id = t.document_ids[static_cast<size_t>(d)];
    read_document_taps(files.find(id).value(), ids, mask, taps.data(), stride, scratch);
  }
  const TokenCorpus corpus({path}, 0);
  corpus.validate(corpus.shards().front().vocab_size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::string> good = [] {
    h5_quiet();
    std::vector<std::string> all;
    for (int kind = 0; kind < kKinds; ++kind) all.push_back(good_shard(kind));
    return all;
  }();
  Changes c{data, data + std::min<size_t>(size, 64)};
  const std::string& from = good[c.byte() % kKinds];
  const std::string path =
      slip::testing::file_of({reinterpret_cast<const uint8_t*>(from.data()), from.size()}, "shard.h5");
  {
    const H5Id file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    while (c.any()) {
      const uint8_t what = c.byte();
      if (what < 96) put_attribute(file, attributes()[what % attributes().size()], c);
      if (what >= 96 && what < 176) put_dataset(file, kDatasets[what % std::size(kDatasets)], c);
      if (what >= 176 && what < 208) put_features(file, c);
      if (what >= 208) sign(file, path);
    }
  }
  if (size > 2 && data[size - 1] == 255) {  // cut
    const auto bytes = std::filesystem::file_size(path);
    std::filesystem::resize_file(path, bytes * data[size - 2] / 256);
  }
  slip::testing::take_or_refuse([&] { read_all(path); });
  return 0;
}
