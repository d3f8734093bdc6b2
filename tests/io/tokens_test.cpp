#include "io/tokens.hpp"

#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>

#include <fcntl.h>
#include <chrono>

#include "io/files.hpp"
#include "io/h5.hpp"
#include "io/shard_bytes.hpp"

namespace slip::testing {
namespace {

struct BadShard {
  const char* name;
  ShardSpec spec;
  std::vector<std::string> parts;
};
void PrintTo(const BadShard& b, std::ostream* os) { *os << b.name; }

class RefusedShard : public ::testing::TestWithParam<BadShard> {};
TEST_P(RefusedShard, NamesFileAndItem) {
  const TempFolder folder;
  const std::string path = write_shard(folder / "bad.h5", GetParam().spec);
  std::vector<std::string> parts = GetParam().parts;
  parts.push_back(path);
  expect_refused([&] { TokenCorpus(std::vector{path}, 0).validate(272); }, kBadInput, parts);
}

ShardSpec with(void (*change)(ShardSpec&)) {
  ShardSpec s = ShardSpec::of({4, 6});
  change(s);
  return s;
}

std::vector<BadShard> bad_shards() {
  return {
      {"NoFormat", with([](auto& s) { s.leave_out = {"format"}; }), {"format", "missing"}},
      {"OtherFormat",
       with([](auto& s) { s.texts["format"] = "slipstream-other"; }),
       {"slipstream-other", "slipstream-tokens"}},
      {"Version2", with([](auto& s) { s.numbers["format_version"] = 2; }), {"format_version is 2", "1"}},
      {"NoVocabulary", with([](auto& s) { s.leave_out = {"vocab_size"}; }), {"vocab_size", "missing"}},
      {"NoTemplate",
       with([](auto& s) { s.leave_out = {"template_sha256"}; }),
       {"template_sha256", "missing"}},
      {"NoMask", with([](auto& s) { s.leave_out = {"loss_mask"}; }), {"loss_mask", "missing"}},
      {"NoOffsets", with([](auto& s) { s.leave_out = {"doc_offsets"}; }), {"doc_offsets", "missing"}},
      {"IdsOfInt64",
       with([](auto& s) { s.ids_type = H5T_STD_I64LE; }),
       {"input_ids", "int32 is expected", "int64"}},
      {"IdsUnsigned",
       with([](auto& s) { s.ids_type = H5T_STD_U32LE; }),
       {"input_ids", "int32 is expected", "uint32"}},
      {"IdsBigEndian", with([](auto& s) { s.ids_type = H5T_STD_I32BE; }), {"input_ids"}},
      {"MaskShort", with([](auto& s) { s.mask.pop_back(); }), {"input_ids", "loss_mask", "10 vs 9"}},  // F6
      {"OffsetsGoBack",
       with([](auto& s) {
         s.offsets = {0, 6, 4, 10};
       }),
       {"doc_offsets", "document 1", "4 after 6"}},
      {"OffsetsStand",
       with([](auto& s) {
         s.offsets = {0, 4, 4, 10};
       }),
       {"doc_offsets", "document 1", "4 after 4"}},
      {"OffsetsBeginLate",
       with([](auto& s) {
         s.offsets = {1, 4, 10};
       }),
       {"doc_offsets", "begins with 1"}},
      {"OffsetsEndEarly",
       with([](auto& s) {
         s.offsets = {0, 4, 9};
       }),
       {"doc_offsets", "ends at 9", "10 tokens"}},
      {"OffsetsEmpty", with([](auto& s) { s.offsets = {}; }), {"doc_offsets", "empty"}},
      {"OffsetsNegative",
       with([](auto& s) {
         s.offsets = {0, -4, 10};
       }),
       {"doc_offsets", "-4"}},
      {"DocumentsLie", with([](auto& s) { s.numbers["documents"] = 3; }), {"documents is 3", "2"}},
      {"TokensLie", with([](auto& s) { s.numbers["tokens"] = 11; }), {"tokens is 11", "10"}},
      {"SupervisedLies",
       with([](auto& s) { s.numbers["supervised_tokens"] = 3; }),
       {"supervised_tokens is 3", "10"}},
      {"VocabularyZero", with([](auto& s) { s.numbers["vocab_size"] = 0; }), {"vocab_size is 0"}},
      {"MaskTokenOutside",
       with([](auto& s) { s.numbers["mask_token_id"] = 272; }),
       {"mask_token_id is 272", "271"}},
      {"MaskTokenNegative", with([](auto& s) { s.numbers["mask_token_id"] = -1; }), {"mask_token_id is -1"}},
      {"MaskValue2",
       with([](auto& s) { s.mask[7] = 2; }),
       {"loss_mask", "document 1, position 3", "is 2"}},  // T4
      {"IdNegative",
       with([](auto& s) { s.ids[5] = -1; }),
       {"input_ids", "document 1, position 1", "-1", "271"}},
      {"IdTooLarge",
       with([](auto& s) { s.ids[3] = 272; }),
       {"input_ids", "document 0, position 3", "272", "272 rows"}},  // B8
      {"OtherVocabulary",
       with([](auto& s) { s.numbers["vocab_size"] = 271; }),
       {"vocab_size is 271", "272 rows"}},
      {"Checksum", with([](auto& s) { s.crc32["input_ids"]["crc32"] = 5; }), {"input_ids", "crc32", "5"}},
      {"TableShort",
       with([](auto& s) {
         s.token_bytes = {65};
         s.token_byte_offsets = {0, 1};
       }),
       {"token_byte_offsets", "2 values", "273"}},
      {"TableBeyond",
       with([](auto& s) {
         s.token_bytes = {65};
         s.token_byte_offsets.assign(273, 0);
       }),
       {"token_byte_offsets", "0 to 1"}},
  };
}
INSTANTIATE_TEST_SUITE_P(Shards, RefusedShard, ::testing::ValuesIn(bad_shards()),
                         [](const auto& i) { return std::string(i.param.name); });

// One corpus of one shard, each in a file of its own: HDF5 does not write to a file that is open.
TokenCorpus corpus(const TempFolder& folder, const ShardSpec& spec, int64_t max_length) {
  static int count = 0;
  return TokenCorpus({write_shard(folder / ("one" + std::to_string(count++) + ".h5"), spec)}, max_length);
}
std::vector<int64_t> lengths(const TokenCorpus& c) {
  std::vector<int64_t> out;
  for (const auto& d : c.documents()) out.push_back(d.length);
  return out;
}
std::vector<int64_t> ids_of(const TokenCorpus& c) {
  std::vector<int64_t> out;
  for (const auto& d : c.documents()) out.push_back(d.id);
  return out;
}

TEST(TokenCorpus, ReadsDocumentsAcrossShards) {
  const TempFolder folder;
  ShardSpec second = ShardSpec::of({3});
  second.texts["tokenizer_sha256"] = "";
  second.variable_text = true;
  second.deflate = false;
  // The middle one is empty: a shard without documents is whole.
  const TokenCorpus c({write_shard(folder / "a.h5", ShardSpec::of({4, 6})),
                       write_shard(folder / "b.h5", ShardSpec::of({})), write_shard(folder / "c.h5", second)},
                      5);
  EXPECT_EQ(ids_of(c), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(lengths(c), (std::vector<int64_t>{4, 5, 3}));
  EXPECT_EQ(c.dropped(), 0);
  ASSERT_EQ(c.shards().size(), 3u);
  EXPECT_EQ(c.shards()[0].tokens, 10);
  EXPECT_EQ(c.shards()[0].supervised, 10);
  EXPECT_EQ(c.shards()[2].source, "x.jsonl");
  EXPECT_EQ(c.shards()[2].template_sha256, "bb");
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  c.read(1, ids, mask);
  EXPECT_EQ(ids, (std::vector<int32_t>{4, 5, 6, 7, 8}));
  EXPECT_EQ(mask, (std::vector<uint8_t>(5, 1)));
  c.read(2, ids, mask);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_THROW(c.read(3, ids, mask), Error);
  EXPECT_THROW(c.read(-1, ids, mask), Error);
  c.validate(272);
  c.require_answers();
}

// A1: 10 prompt tokens and 4 of the answer, cut to 8, alone and as one of five.
TEST(TokenCorpus, ACutThatRemovesTheAnswerDropsTheDocument) {
  const TempFolder folder;
  ShardSpec s = ShardSpec::of({14, 5, 5, 5, 5});
  std::fill_n(s.mask.begin(), 10, uint8_t{0});
  const TokenCorpus c = corpus(folder, s, 8);
  EXPECT_EQ(c.dropped(), 1);
  EXPECT_EQ(ids_of(c), (std::vector<int64_t>{1, 2, 3, 4}));  // ids count all documents
  EXPECT_EQ(c.shards()[0].unsupervised, 0);
  c.require_answers();
  EXPECT_EQ(corpus(folder, s, 12).dropped(), 0);  // two supervised tokens are left
  EXPECT_EQ(corpus(folder, s, 11).dropped(), 1);
  ShardSpec alone = ShardSpec::of({14});
  std::fill_n(alone.mask.begin(), 10, uint8_t{0});
  const TokenCorpus nothing = corpus(folder, alone, 8);
  EXPECT_TRUE(nothing.documents().empty());
  expect_refused([&] { nothing.require_answers(); }, kBadInput,
                 {folder / "one", "no supervision", "first 8 tokens"});
}

// A3: shorter than a block is no reason to drop.
TEST(TokenCorpus, ShortDocumentsAreKept) {
  const TempFolder folder;
  EXPECT_EQ(lengths(corpus(folder, ShardSpec::of({3, 2, 1}), 4096)), (std::vector<int64_t>{3, 2}));
}

TEST(TokenCorpus, TwoConsecutiveTokensMakeADocumentUsable) {
  const TempFolder folder;
  ShardSpec s = ShardSpec::of({4, 4, 4});
  s.mask = {1, 0, 1, 0, /**/ 0, 0, 0, 1, /**/ 1, 0, 1, 1};  // a pair does not cross documents
  const TokenCorpus c = corpus(folder, s, 0);
  EXPECT_EQ(ids_of(c), (std::vector<int64_t>{2}));
  EXPECT_EQ(c.dropped(), 2);
  EXPECT_EQ(c.shards()[0].unsupervised, 2);
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  c.read(0, ids, mask);  // dropped, yet it can be read
  EXPECT_EQ(mask, (std::vector<uint8_t>{1, 0, 1, 0}));
}

TEST(TokenCorpus, DocumentsAcrossPiecesOfTheScan) {
  const TempFolder folder;
  ShardSpec s = ShardSpec::of({1'048'575, 4, 1'048'576, 5});
  std::fill(s.mask.begin(), s.mask.end(), uint8_t{0});
  s.mask[1'048'575] = s.mask[1'048'576] = 1;  // the pair lies on both sides of a piece's end
  s.mask[2'097'155 + 2] = s.mask[2'097'155 + 3] = 1;
  const TokenCorpus c = corpus(folder, s, 0);
  EXPECT_EQ(ids_of(c), (std::vector<int64_t>{1, 3}));
  c.validate(272);
}

TEST(TokenCorpus, PromptsAreNotTrainedOn) {
  const TempFolder folder;
  ShardSpec s = ShardSpec::of({4, 4});
  s.numbers["prompts"] = 1;
  corpus(folder, s, 0).require_answers();  // all documents have answers: fine
  std::fill_n(s.mask.begin(), 4, uint8_t{0});
  const TokenCorpus c = corpus(folder, s, 0);
  EXPECT_TRUE(c.shards()[0].prompts);
  expect_refused([&] { c.require_answers(); }, kBadInput, {folder / "one", "prompts", "1 of 2"});
}

TEST(TokenCorpus, IdsAreCheckedWhereverTheyAreRead) {
  const TempFolder folder;
  ShardSpec s = ShardSpec::of({4, 4});
  s.ids[6] = 300;
  const TokenCorpus c = corpus(folder, s, 0);
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  c.read(0, ids, mask);
  expect_refused([&] { c.read(1, ids, mask); }, kBadInput, {"document 1, position 2", "300"});
}

TEST(TokenCorpus, ChecksumOfZlib) {
  const TempFolder folder;
  ShardSpec s = ShardSpec::of({9});
  s.mask = {0, 1, 1, 1, 0, 1, 1, 0, 0};
  // zlib.crc32 of the nine bytes, of the ids 0..8 and of the offsets [0, 9]
  s.crc32 = {{"loss_mask", {{"crc32", 4277584243}}},
             {"input_ids", {{"crc32", 3571537460}}},
             {"doc_offsets", {{"crc32", 4092874878}}}};
  corpus(folder, s, 0).validate(272);
}

TEST(TokenCorpus, ShardsOfOneRunAgree) {
  const TempFolder folder;
  const std::string a = write_shard(folder / "a.h5", ShardSpec::of({4}));
  const auto refused = [&](void (*change)(ShardSpec&), const char* key) {
    ShardSpec s = ShardSpec::of({4});
    change(s);
    const std::string b = write_shard(folder / "b.h5", s);
    expect_refused([&] { TokenCorpus c({a, b}, 0); }, kBadInput, {a, b, key});
  };
  refused([](ShardSpec& s) { s.numbers["vocab_size"] = 300; }, "vocab_size is 300, but 272");
  refused([](ShardSpec& s) { s.numbers["mask_token_id"] = 3; }, "mask_token_id is 3, but 258");
  refused([](ShardSpec& s) { s.texts["tokenizer_sha256"] = "cc"; }, "tokenizer_sha256 is cc, but aa");
}

TEST(TokenCorpus, TruncatedAndForeignFiles) {
  const TempFolder folder;
  ShardSpec s = ShardSpec::of({4, 6});
  const std::string path = write_shard(folder / "cut.h5", s), whole = read_file(path);
  for (const size_t size : {size_t{0}, size_t{4}, size_t{100}, whole.size() / 2, whole.size() - 1}) {
    write_file(path, whole.substr(0, size));
    expect_refused([&] { TokenCorpus c({path}, 0); }, kBadInput, {path, std::to_string(size) + " bytes"});
  }
  write_file(path, "{\"this\": \"is JSON\"}");
  expect_refused([&] { TokenCorpus c({path}, 0); }, kBadInput, {path, "HDF5"});
  expect_refused([&] { TokenCorpus c({folder / "absent.h5"}, 0); }, kBadInput,
                 {folder / "absent.h5", "No such file"});
  expect_refused([&] { TokenCorpus c({folder.path()}, 0); }, kBadInput, {folder.path()});
}

TEST(TokenCorpus, ADatasetThatWasNeverWritten) {
  const TempFolder folder;
  ShardSpec s = ShardSpec::of({4});
  s.leave_out = {"input_ids"};
  const std::string path = write_shard(folder / "x.h5", s);
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  const hsize_t length = hsize_t{1} << 50, chunk = 65536;
  const hid_t space = H5Screate_simple(1, &length, nullptr), how = H5Pcreate(H5P_DATASET_CREATE);
  must(H5Pset_chunk(how, 1, &chunk));
  must(H5Dclose(H5Dcreate2(file, "input_ids", H5T_STD_I32LE, space, H5P_DEFAULT, how, H5P_DEFAULT)));
  must(H5Pclose(how));
  must(H5Sclose(space));
  must(H5Fclose(file));
  expect_refused([&] { TokenCorpus c({path}, 0); }, kBadInput, {path, "input_ids", "not written to the end"});
}

// F9
TEST(ExpandGlobs, UnicodeSpacesAndOrder) {
  const TempFolder folder;
  const std::string place = folder / "模型 ø/日本 語", long_name = std::string(197, 'n') + ".h5";
  std::filesystem::create_directories(place);
  for (const std::string& name :
       {std::string("b 2.h5"), std::string("a 10.h5"), std::string("a 9.h5"), long_name}) {
    write_shard(place + "/" + name, ShardSpec::of({4}));
  }
  write_file(place + "/a 9.h5.partial", "");
  std::filesystem::create_directories(place + "/folder.h5");
  const std::vector<std::string> all = expand_globs(place + "/*.h5");
  EXPECT_EQ(all, (std::vector<std::string>{place + "/a 10.h5", place + "/a 9.h5", place + "/b 2.h5",
                                           place + "/" + long_name}));
  EXPECT_EQ(TokenCorpus(all, 0).documents().size(), 4u);
  // Patterns keep their order, files within one are sorted; a file named twice counts once.
  EXPECT_EQ(expand_globs(place + "/b*, " + place + "/*.h5,").size(), 4u);
  EXPECT_EQ(expand_globs(place + "/b*, " + place + "/*.h5,")[0], place + "/b 2.h5");
  EXPECT_EQ(expand_globs(place + "/b*.h5*").size(), 1u);
  expect_refused([&] { expand_globs(place + "/b 2.h5," + place + "/ø*.h5"); }, kBadInput, {place + "/ø*.h5"});
  expect_refused([&] { expand_globs(place + "/a 9.h5.partial"); }, kBadInput,
                 {"a 9.h5.partial", "unfinished"});
  expect_refused([&] { expand_globs(place); }, kBadInput, {place, "/*.h5"});
  expect_refused([&] { expand_globs(" , "); }, kBadInput, {"names no file"});
  expect_refused([&] { TokenCorpus c({place + "/a 9.h5.partial"}, 0); }, kBadInput,
                 {place + "/a 9.h5.partial"});
}

TEST(ExpandGlobs, SaysWhatMayHaveBeenMeant) {
  const TempFolder folder;
  write_file(folder / "train.h5", "");
  write_file(folder / "heldout.h5.partial", "");
  expect_refused([&] { expand_globs(folder / "trian.h5"); }, kBadInput,
                 {"there is " + (folder / "train.h5")});
  expect_refused([&] { expand_globs(folder / "shardz/*.h5"); }, kBadInput,
                 {"there is no folder " + (folder / "shardz")});
  for (const char* name : {"heldout.h5", "quite-another.h5", "x*.h5"}) {
    try {
      expand_globs(folder / name);
      ADD_FAILURE() << name;
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).find("there is"), std::string::npos) << e.what();
    }
  }
}

TEST(ExpandGlobs, ANameWithBracketsIsAName) {
  const TempFolder folder;
  const std::string path = write_file(folder / "run[1].h5", "");
  EXPECT_EQ(expand_globs(path), (std::vector<std::string>{path}));
}

// F8. HDF5 looks at HDF5_USE_FILE_LOCKING once per process: each setting needs a process of its own, which
// runs the test below. This process holds the lock.
TEST(Locks, DISABLED_OpenTheShardOfTheEnvironment) {
  const char* path = std::getenv("SLIP_TEST_SHARD");
  ASSERT_NE(path, nullptr);
  const Complaint c = complaint_of([&] { TokenCorpus corpus({path}, 0); });
  std::printf("exit_code=%d %s\n", c.exit_code, c.text.c_str());
}

std::string open_in_child(const std::string& path, const std::string& setting) {
  const std::string command = "env " + setting + " SLIP_TEST_SHARD='" + path + "' '" +
                              std::filesystem::read_symlink("/proc/self/exe").string() +
                              "' --gtest_also_run_disabled_tests --gtest_filter=Locks.DISABLED_* 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  for (int c; pipe != nullptr && (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  EXPECT_EQ(pclose(pipe), 0) << text;
  return text;
}

TEST(Locks, AShardLockedByAnotherProcess) {
  const TempFolder folder;
  const std::string path = write_shard(folder / "locked 日本.h5", ShardSpec::of({4}));
  const int fd = open(path.c_str(), O_RDWR);
  ASSERT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_NE(open_in_child(path, "-u HDF5_USE_FILE_LOCKING").find("exit_code=0"), std::string::npos);
  EXPECT_NE(open_in_child(path, "HDF5_USE_FILE_LOCKING=FALSE").find("exit_code=0"), std::string::npos);
  const std::string forced = open_in_child(path, "HDF5_USE_FILE_LOCKING=TRUE");
  EXPECT_NE(forced.find("exit_code=3"), std::string::npos) << forced;
  for (const std::string& part : {path, std::string("errno"), std::string("HDF5_USE_FILE_LOCKING=FALSE")}) {
    EXPECT_NE(forced.find(part), std::string::npos) << forced;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
  close(fd);
}

}  // namespace
}  // namespace slip::testing
