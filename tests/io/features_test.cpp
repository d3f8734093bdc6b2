// Feature shards: what is written is read, bit by bit, and what was changed afterwards is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "core/random.hpp"
#include "io/feature_manifest.hpp"
#include "io/feature_shard.hpp"
#include "io/files.hpp"
#include "io/tokens.hpp"

namespace slip::testing {
namespace {

struct Document {
  int64_t id;
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  std::vector<Bf16> features;  // of every token
  int64_t rows;
};

struct Dump {
  FeatureSpec spec;
  std::vector<Document> documents;
};

// Any bits, NaN and infinities too.
Dump make_dump(const std::vector<int64_t>& lengths, int64_t taps, int64_t hidden,
               const std::string& span = "all") {
  Dump d;
  for (int64_t k = 0; k < taps; ++k) d.spec.taps.push_back(2 * k + 1);
  d.spec.target = "a target 模型";
  d.spec.architecture = "qwen3";
  d.spec.hidden = hidden;
  d.spec.vocab_size = 1000;
  d.spec.mask_token_id = 999;
  d.spec.rope_theta = 1e6;
  d.spec.span = span;
  for (size_t i = 0; i < lengths.size(); ++i) {
    Document doc{static_cast<int64_t>(100 - 3 * i), {}, {}, {}, 0};
    for (int64_t t = 0; t < lengths[i]; ++t) {
      doc.ids.push_back(static_cast<int32_t>(random_u64(1, i, static_cast<uint64_t>(t)) % 999));
      doc.mask.push_back(t >= lengths[i] / 3 && t < lengths[i] / 2);
    }
    for (int64_t v = 0; v < lengths[i] * taps * hidden; ++v)
      doc.features.push_back({static_cast<uint16_t>(random_u64(2, i, static_cast<uint64_t>(v)))});
    doc.rows = span == "all" ? lengths[i] : supervised_span(doc.mask.data(), lengths[i]);
    d.documents.push_back(std::move(doc));
  }
  return d;
}

ShardSize size_of(const Dump& d) {
  ShardSize s;
  for (const Document& doc : d.documents) {
    ++s.documents;
    s.tokens += static_cast<int64_t>(doc.ids.size());
    s.feature_rows += doc.rows;
  }
  return s;
}

// In rows of two documents.
ShardEntry write(const Dump& d, const std::string& path, const ShardSize& planned) {
  FeatureShardWriter w(path, d.spec, {}, planned);
  for (size_t i = 0; i < d.documents.size(); i += 2) {
    std::vector<FeatureDocument> row;
    std::vector<Bf16> features;
    for (size_t j = i; j < std::min(i + 2, d.documents.size()); ++j) {
      const Document& doc = d.documents[j];
      row.push_back({doc.id, doc.ids, doc.mask, doc.rows});
      features.insert(features.end(), doc.features.begin(), doc.features.end());
    }
    w.add(row, features.data());
  }
  return w.finish();
}

void expect_holds(const FeatureShard& s, const Dump& d) {
  ASSERT_EQ(s.info().documents, static_cast<int64_t>(d.documents.size()));
  const int64_t width = d.spec.values_per_token();
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  for (size_t i = 0; i < d.documents.size(); ++i) {
    const Document& doc = d.documents[i];
    EXPECT_EQ(s.tables().document_ids[i], doc.id);
    std::vector<Bf16> got(static_cast<size_t>(doc.rows * width), Bf16{0x7fff});
    s.read_document(static_cast<int64_t>(i), got.data());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), doc.features.begin())) << "document " << i;
    if (!s.info().all) {
      s.read_tokens(static_cast<int64_t>(i), ids, mask);
      EXPECT_EQ(ids, doc.ids);
      EXPECT_EQ(mask, doc.mask);
    }
  }
}

struct Kind {
  const char* name;
  const char *span, *bf16, *compress;
  std::vector<int64_t> lengths;
  int64_t taps, hidden;
};
void PrintTo(const Kind& k, std::ostream* os) { *os << k.name; }
class Written : public ::testing::TestWithParam<Kind> {};

TEST_P(Written, IsRead) {
  const TempFolder folder;
  const Kind& k = GetParam();
  Dump d = make_dump(k.lengths, k.taps, k.hidden, k.span);
  d.spec.bf16 = k.bf16;
  d.spec.compress = k.compress;
  const ShardSize size = size_of(d);
  const ShardEntry e = write(d, folder / "features-000000.h5", size);
  EXPECT_EQ(e.feature_rows, size.feature_rows);
  EXPECT_EQ(e.bytes, static_cast<int64_t>(std::filesystem::file_size(folder / "features-000000.h5")));
  EXPECT_LE(e.bytes, shard_bytes_bound(d.spec, {}, size));
  EXPECT_FALSE(std::filesystem::exists(folder / "features-000000.h5.partial"));
  const FeatureShard s(folder / "features-000000.h5");
  EXPECT_TRUE(spec_differences(s.info().spec, d.spec, "").empty());
  expect_holds(s, d);
  int64_t seen = 0;
  s.verify([&](int64_t bytes) { seen += bytes; });
  EXPECT_EQ(seen, size.feature_rows * d.spec.bytes_per_token());
}

TEST_P(Written, WithFewerDocumentsThanPlanned) {
  const TempFolder folder;
  const Kind& k = GetParam();
  Dump d = make_dump(k.lengths, k.taps, k.hidden, k.span);
  d.spec.bf16 = k.bf16;
  d.spec.compress = k.compress;
  ShardSize planned = size_of(d);
  planned.feature_rows += 300;
  planned.tokens += 300;
  write(d, folder / "features-000000.h5", planned);
  expect_holds(FeatureShard(folder / "features-000000.h5"), d);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Written,
    ::testing::Values(Kind{"small", "all", "float", "none", {5, 1, 17}, 2, 8},
                      Kind{"many_chunks", "all", "float", "none", {300, 1100, 2, 700}, 3, 4096},
                      Kind{"supervised", "supervised", "float", "none", {30, 2, 64, 9}, 2, 24},
                      Kind{"no_features", "supervised", "float", "none", {1, 2}, 2, 8},
                      Kind{"uint16", "all", "uint16", "none", {12, 13}, 1, 64},
                      Kind{"deflate", "all", "float", "deflate", {100, 300, 40}, 2, 4096}),
    ::testing::PrintToStringParamName());

TEST(FeatureShard, IsATokenShardWithItsOwnDocumentIds) {
  const TempFolder folder;
  const Dump d = make_dump({5, 30, 17}, 2, 8);
  const std::string path = folder / "features-000000.h5";
  write(d, path, size_of(d));
  const TokenCorpus corpus({path}, 0);
  corpus.validate(1000);
  ASSERT_EQ(corpus.documents().size(), 2u);  // of 5 tokens one is supervised, of 17 three, of 30 five
  EXPECT_EQ(corpus.documents()[0].id, 94);
  EXPECT_EQ(corpus.documents()[1].id, 97);
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  corpus.read(97, ids, mask);
  EXPECT_EQ(ids, d.documents[1].ids);
}

TEST(FeatureShard, TwiceTheSameDocumentIsRefused) {
  const TempFolder folder;
  const Dump d = make_dump({5, 30}, 2, 8);
  for (const char* name : {"a.h5", "b.h5"}) write(d, folder / name, size_of(d));
  expect_refused(
      [&] {
        TokenCorpus({folder / "a.h5", folder / "b.h5"}, 0);
      },
      kBadInput, {folder / "b.h5", "97", folder / "a.h5"});
}

// Byte `offset` from where the features of the file begin.
void flip(const std::string& path, const std::vector<Bf16>& features) {
  std::string bytes = read_file(path);
  const std::string pattern(reinterpret_cast<const char*>(features.data()), 64);
  const size_t at = bytes.find(pattern);
  ASSERT_NE(at, std::string::npos);
  bytes[at + 20] = static_cast<char>(bytes[at + 20] ^ 1);
  write_file(path, bytes);
}

TEST(FeatureShard, AFlippedByteNamesTheDocument) {
  const TempFolder folder;
  const Dump d = make_dump({5, 30, 17}, 2, 8);
  const std::string path = folder / "features-000000.h5";
  write(d, path, size_of(d));
  flip(path, d.documents[1].features);
  const FeatureShard s(path);
  std::vector<Bf16> out(30 * 16);
  s.read_document(0, out.data());
  s.read_document(2, out.data());
  expect_refused([&] { s.read_document(1, out.data()); }, kBadInput,
                 {path, "features", "document 1", "id 97", "checksum"});
  expect_refused([&] { s.verify([](int64_t) {}); }, kBadInput, {path, "document 1"});
}

TEST(FeatureShard, EveryCutIsRefused) {
  const TempFolder folder;
  const Dump d = make_dump({50, 300, 170}, 2, 64);
  const std::string path = folder / "features-000000.h5";
  write(d, path, size_of(d));
  const std::string bytes = read_file(path);
  for (size_t keep = 0; keep < bytes.size(); keep += bytes.size() / 40 + 1) {
    write_file(path, bytes.substr(0, keep));
    expect_refused([&] { FeatureShard(path).verify([](int64_t) {}); }, kBadInput, {path});
  }
}

TEST(FeatureShard, AnotherVersionOrFormatIsRefused) {
  const TempFolder folder;
  const Dump d = make_dump({5}, 2, 8);
  const std::string path = folder / "features-000000.h5";
  write(d, path, size_of(d));
  for (const auto& [name, parts] :
       {std::pair<std::string, std::vector<std::string>>{"format_version", {"format_version", "7", "1"}},
        {"hidden", {"hidden", "7", "8"}},
        {"taps", {}}}) {
    if (parts.empty()) continue;
    write(d, path, size_of(d));
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT),
                a = H5Aopen(file, name.c_str(), H5P_DEFAULT);
    const int64_t seven = 7;
    ASSERT_GE(H5Awrite(a, H5T_NATIVE_INT64, &seven), 0);
    H5Aclose(a), H5Fclose(file);
    std::vector<std::string> all = parts;
    all.push_back(path);
    expect_refused([&] { FeatureShard s(path); }, kBadInput, all);
  }
}

TEST(Manifest, IsReadAndListsWhatIsThere) {
  const TempFolder folder;
  const Dump a = make_dump({5, 30}, 2, 8);
  Dump b = make_dump({7, 1, 40}, 2, 8);
  for (Document& d : b.documents) d.id += 1000;
  DumpManifest m{a.spec, false, {}};
  m.shards.push_back(write(a, folder / shard_name(0), size_of(a)));
  m.shards.push_back(write(b, folder / shard_name(1), size_of(b)));
  write_manifest(folder.path(), m);
  write_virtual_file(folder.path(), m);
  const std::optional<DumpManifest> read = read_manifest(folder.path());
  ASSERT_TRUE(read);
  EXPECT_TRUE(spec_differences(read->spec, m.spec, "").empty());
  ASSERT_EQ(read->shards.size(), 2u);
  EXPECT_EQ(read->shards[1].content_xxh3, m.shards[1].content_xxh3);
  EXPECT_EQ(expand_feature_paths(folder.path()),
            (std::vector{folder / shard_name(0), folder / shard_name(1)}));
  EXPECT_EQ(expand_feature_paths(folder / "*.h5"),
            (std::vector{folder / shard_name(0), folder / shard_name(1)}));

  Dump both = a;
  both.documents.insert(both.documents.end(), b.documents.begin(), b.documents.end());
  expect_holds(FeatureShard(folder / "all.h5"), both);
  // The whole folder may move.
  const TempFolder elsewhere;
  const std::string moved = elsewhere / "日本 ø";
  std::filesystem::rename(folder.path(), moved);
  expect_holds(FeatureShard(moved + "/all.h5"), both);
  std::filesystem::remove(moved + "/" + shard_name(1));
  expect_refused([&] { FeatureShard s(moved + "/all.h5"); }, kBadInput, {shard_name(1), "missing"});
  expect_refused([&] { expand_feature_paths(moved); }, kBadInput, {shard_name(1), "missing"});
}

TEST(SupervisedSpan, EndsBeforeTheLastAnchor) {
  const auto span = [](const std::vector<uint8_t>& mask) {
    return supervised_span(mask.data(), static_cast<int64_t>(mask.size()));
  };
  EXPECT_EQ(span({0, 0, 1, 1, 0}), 2);  // the anchor is token 2: blocks see tokens 0 and 1
  EXPECT_EQ(span({0, 0, 1, 1, 1}), 3);
  EXPECT_EQ(span({1, 1, 0, 1}), 0);
  EXPECT_EQ(span({0, 1, 0, 1}), 0);
  EXPECT_EQ(span({1}), 0);
}

}  // namespace
}  // namespace slip::testing
