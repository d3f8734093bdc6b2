#include "io/safetensors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "io/files.hpp"
#include "io/safetensors_bytes.hpp"

namespace slip::testing {
namespace {

const std::string kGolden = SLIP_SOURCE_DIR "/tests/golden/";

std::string f32(const std::string& name, const std::string& offsets) {
  return entry(name, "F32", "[4]", offsets);
}

struct Malformed {
  const char* name;
  std::string bytes;
  std::vector<std::string> parts;  // of the message
};
void PrintTo(const Malformed& m, std::ostream* os) { *os << m.name; }

class Refused : public ::testing::TestWithParam<Malformed> {};
TEST_P(Refused, NamesFileAndReason) {
  const TempFolder folder;
  const std::string path = write_file(folder / "model.safetensors", GetParam().bytes);
  std::vector<std::string> parts = GetParam().parts;
  parts.push_back(path);
  expect_refused([&] { SafetensorsFile file(path); }, kBadInput, parts);
}

std::vector<Malformed> malformed() {
  const auto file = safetensors_bytes;
  const std::string long_name(2000, 'n');
  return {
      {"Empty", "", {"0 bytes", "at least 8"}},
      {"SevenBytes", std::string(7, '\0'), {"7 bytes", "at least 8"}},
      {"HeaderLength2to64", std::string("\x3c\0\0\0\0\0\0\xff", 8), {"18374686479671623740", "100000000"}},
      {"HeaderJustTooLong", std::string("\x01\xe1\xf5\x05\0\0\0\0", 8), {"100000001"}},
      {"NoBody", std::string("\x3c\0\0\0\0\0\0\0", 8), {"byte 68", "8 bytes", "difference 60"}},
      {"NotUtf8", file("\xff", 0), {"header is not JSON"}},
      {"NotUtf8InName", file("{\"\xff\xfe\":{}}", 0), {"not JSON"}},
      {"OnlyBrace", file("{", 0), {"not JSON"}},
      {"EmptyHeader", file("", 0), {"not JSON"}},
      {"Array", file("[]", 0), {"not JSON"}},
      {"TextBehind", file("{} x", 0), {"not JSON"}},
      {"SecondObject", file("{}{}", 0), {"not JSON"}},
      {"ZeroByteInside", file(std::string("{}\0\0", 4), 0), {"byte 0"}},
      {"ByteOrderMark", file("\xef\xbb\xbf{}", 0), {"not JSON"}},
      {"DeepNesting", file(std::string(100000, '['), 0), {"not JSON"}},
      {"DeepValue", file("{\"a\":" + std::string(100000, '['), 0), {"a is an object"}},
      {"Overlap",
       file("{" + f32("a", "[0,16]") + "," + f32("b", "[0,16]") + "}", 16),
       {"tensor b", "begin at 0", "16 is expected"}},
      {"Hole", file("{" + f32("a", "[4,20]") + "}", 20), {"tensor a", "begin at 4", "0 is expected"}},
      {"HoleBetween",
       file("{" + f32("a", "[0,16]") + "," + f32("b", "[17,33]") + "}", 33),
       {"tensor b", "begin at 17"}},
      {"EndBeforeBegin", file("{" + f32("a", "[16,0]") + "}", 16), {"tensor a", "end before they begin"}},
      {"SizeContradictsShape",
       file("{" + entry("a", "I32", "[2, 2]", "[0,4]") + "}", 4),
       {"tensor a", "I32 [2, 2]", "16 bytes", "give 4"}},
      {"CountOverflows",
       file("{" + entry("a", "I32", "[2,18446744073709551614]", "[0,16]") + "}", 16),
       {"tensor a", "overflow"}},
      {"BitsOverflow",
       file("{" + entry("a", "I32", "[2,9223372036854775807]", "[0,16]") + "}", 16),
       {"tensor a", "overflow"}},
      {"OffsetsNearOverflow",
       file("{" + entry("a", "U8", "[9223372036854775807]", "[0,9223372036854775807]") + "}", 16),
       {"tensor a", "overflow"}},
      {"DimAbove64Bits",
       file("{" + entry("a", "U8", "[36893488147419103232]", "[0,16]") + "}", 16),
       {"tensor a", "36893488147419103232"}},
      {"ShapeOfOneTerabyte",
       file("{" + entry("a", "U8", "[1099511627776]", "[0,1099511627776]") + "}", 16),
       {"byte 1099511627861", "101 bytes", "cut short"}},
      {"TwoBytesMissing", file("{" + f32("a", "[0,16]") + "}", 14), {"difference 2", "cut short"}},
      {"TrailingBytes", file("{" + f32("a", "[0,16]") + "}", 19), {"difference 3", "trailing"}},
      {"TrailingByteWithoutTensors", file("{}", 1), {"difference 1", "trailing"}},
      {"UnknownDtype", file("{" + entry("a", "F7", "[4]", "[0,16]") + "}", 16), {"tensor a", "\"F7\""}},
      {"DtypeLowerCase", file("{" + entry("a", "f32", "[4]", "[0,16]") + "}", 16), {"tensor a", "\"f32\""}},
      {"SubByteNotWhole", file("{" + entry("a", "F4", "[3]", "[0,1]") + "}", 1), {"tensor a", "12 bits"}},
      {"NegativeOffset", file("{" + f32("a", "[-1,15]") + "}", 16), {"tensor a", "data_offsets", "-1"}},
      {"MinusZero", file("{" + f32("a", "[-0,16]") + "}", 16), {"tensor a", "data_offsets"}},
      {"FractionalOffset", file("{" + f32("a", "[1.5,16]") + "}", 16), {"tensor a", "data_offsets", "1.5"}},
      {"TextOffset", file("{" + f32("a", "[\"0\",16]") + "}", 16), {"tensor a", "data_offsets", "\"0\""}},
      {"NegativeDim", file("{" + entry("a", "F32", "[-4]", "[0,16]") + "}", 16), {"tensor a", "shape", "-4"}},
      {"OneOffset", file("{" + f32("a", "[16]") + "}", 16), {"tensor a", "data_offsets has 1"}},
      {"ThreeOffsets", file("{" + f32("a", "[0,8,16]") + "}", 16), {"tensor a", "data_offsets has 3"}},
      {"NoOffsets", file("{\"a\":{\"dtype\":\"F32\",\"shape\":[4]}}", 16), {"tensor a", "no data_offsets"}},
      {"NoShape", file("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", 16), {"tensor a", "no shape"}},
      {"NoDtype", file("{\"a\":{\"shape\":[4],\"data_offsets\":[0,16]}}", 16), {"tensor a", "no dtype"}},
      {"UnknownKey",
       file("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"strides\":[1],\"data_offsets\":[0,16]}}", 16),
       {"tensor a", "strides"}},
      {"NestedShape", file("{" + entry("a", "F32", "[[4]]", "[0,16]") + "}", 16), {"tensor a", "shape"}},
      {"DtypeIsList",
       file("{\"a\":{\"dtype\":[],\"shape\":[4],\"data_offsets\":[0,16]}}", 16),
       {"tensor a", "dtype"}},
      {"TensorIsNumber", file("{\"a\":1}", 0), {"a is an object, found 1"}},
      {"DuplicateName",
       file("{" + f32("a", "[0,16]") + "," + f32("a", "[0,16]") + "}", 16),
       {"tensor a", "twice"}},
      {"DuplicateKeyInside",
       file("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 16),
       {"tensor a", "dtype occurs twice"}},
      {"DuplicateMetadata", file("{\"__metadata__\":{},\"__metadata__\":{}}", 0), {"__metadata__", "twice"}},
      {"DuplicateMetadataKey",
       file("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0),
       {"__metadata__", "\"k\"", "twice"}},
      {"MetadataNotText", file("{\"__metadata__\":{\"format\":1}}", 0), {"__metadata__", "format", "string"}},
      {"MetadataIsList", file("{\"__metadata__\":[]}", 0), {"__metadata__"}},
      {"LongName", file("{" + f32(long_name, "[0,16]") + "}", 16), {"2000 bytes", "1024"}},
      {"HighRank",
       file("{" +
                entry(
                    "a", "U8",
                    "[1" +
                        [] {
                          std::string s;
                          for (int i = 0; i < 99; ++i) s += ",1";
                          return s;
                        }() +
                        "]",
                    "[0,1]") +
                "}",
            1),
       {"tensor a", "shape", "64"}},
  };
}
INSTANTIATE_TEST_SUITE_P(Files, Refused, ::testing::ValuesIn(malformed()),
                         [](const auto& i) { return std::string(i.param.name); });

TEST(Safetensors, AcceptsWhatTheFormatAllows) {
  const TempFolder folder;
  const auto open = [&](const std::string& bytes) {
    return SafetensorsFile(write_file(folder / "x.safetensors", bytes));
  };
  EXPECT_TRUE(open(safetensors_bytes("{}")).tensors().empty());
  EXPECT_EQ(open(safetensors_bytes(" \n{" + f32("a", "[0,16]") + "}   ", 16)).tensors().size(), 1u);
  const SafetensorsFile empty = open(safetensors_bytes(
      "{" + entry("none", "F32", "[3,0]", "[0,0]") + "," + entry("scalar", "F32", "[]", "[0,4]") + "}", 4));
  ASSERT_NE(empty.find("none"), nullptr);
  EXPECT_EQ(empty.find("none")->count(), 0);
  EXPECT_EQ(empty.find("scalar")->count(), 1);
  EXPECT_EQ(empty.find("absent"), nullptr);
  const SafetensorsFile f4 = open(safetensors_bytes("{" + entry("a", "F4", "[2,3]", "[0,3]") + "}", 3));
  EXPECT_EQ(f4.find("a")->dtype, Dtype::other);
  EXPECT_EQ(f4.find("a")->dtype_text, "F4");
  const SafetensorsFile named = open(safetensors_bytes("{\"__metadata__\":{\"format\":\"pt\"}}"));
  EXPECT_EQ(named.metadata().at("format"), "pt");
}

TEST(Safetensors, MissingFileAndFolder) {
  const TempFolder folder;
  expect_refused([&] { SafetensorsFile f(folder / "absent"); }, kBadInput,
                 {folder / "absent", "No such file"});
  expect_refused([&] { SafetensorsFile f(folder.path()); }, kBadInput, {folder.path(), "folder"});
}

// B12
TEST(Safetensors, FileShorterThanItsHeaderSays) {
  const TempFolder folder;
  const std::string whole = read_file(kGolden + "tiny-qwen3/model.safetensors");
  const std::string path = write_file(folder / "cut.safetensors", whole.substr(0, whole.size() - 100));
  expect_refused([&] { SafetensorsFile f(path); }, kBadInput,
                 {path, std::to_string(whole.size()), std::to_string(whole.size() - 100), "difference 100"});
  write_file(path, whole.substr(0, 200));
  expect_refused([&] { SafetensorsFile f(path); }, kBadInput, {path, "200 bytes"});
}

TEST(Safetensors, FileThatChangesAfterOpening) {
  const TempFolder folder;
  const std::string bytes = safetensors_bytes("{" + f32("a", "[0,16]") + "}", 16),
                    path = write_file(folder / "x", bytes);
  const SafetensorsFile file(path);
  float out[4];
  file.read_float(*file.find("a"), out);
  std::filesystem::resize_file(path, bytes.size() - 1);
  expect_refused([&] { file.read(*file.find("a"), out); }, kBadInput, {path, "ends at byte"});
  std::filesystem::resize_file(path, bytes.size() + 1);
  expect_refused([&] { file.read_float(*file.find("a"), out); }, kBadInput,
                 {path, "changed while it was read"});
}

TEST(Safetensors, WriterAndReaderAgree) {
  const TempFolder folder;
  const std::string path = folder / "out.safetensors";
  // More than one piece of the converting reader.
  std::vector<Bf16> wide(3'000'001);
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = {static_cast<uint16_t>(i % 0x7f80)};
  const std::vector<float> f = {1.5f, -0.0f, std::numeric_limits<float>::infinity(), 0.1f};
  const std::vector<double> d = {0.1, -2.5};
  const std::vector<int32_t> ints = {-7, 8};
  const std::vector<uint8_t> bytes = {1, 0, 1};
  const int64_t size = write_safetensors(path,
                                         {{"z.bytes", Dtype::u8, {3}, bytes.data()},
                                          {"b.wide", Dtype::bf16, {3'000'001}, wide.data()},
                                          {"b.f", Dtype::f32, {2, 2}, f.data()},
                                          {"a.ints", Dtype::i32, {2}, ints.data()},
                                          {"d", Dtype::f64, {2}, d.data()},
                                          {"none", Dtype::f32, {0, 5}, nullptr}},
                                         {{"case", "{\"n\": 1}"}});
  EXPECT_EQ(static_cast<uintmax_t>(size), std::filesystem::file_size(path));
  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"case", "{\"n\": 1}"}}));
  std::vector<std::string> order;
  for (const TensorInfo& t : file.tensors()) {
    if (t.bytes > 0) order.push_back(t.name);
    EXPECT_EQ(t.offset % std::max<int64_t>(1, dtype_bytes(t.dtype)), 0) << t.name;
  }
  EXPECT_EQ(order, (std::vector<std::string>{"d", "a.ints", "b.f", "b.wide", "z.bytes"}));

  std::vector<float> got(wide.size());
  file.read_float(*file.find("b.wide"), got.data());
  for (size_t i = 0; i < wide.size(); ++i) ASSERT_EQ(to_bf16(got[i]), wide[i]) << i;
  std::vector<Bf16> same(wide.size());
  file.read_bf16(*file.find("b.wide"), same.data());
  EXPECT_EQ(same, wide);
  std::vector<float> f_got(4);
  file.read_float(*file.find("b.f"), f_got.data());
  EXPECT_EQ(std::memcmp(f_got.data(), f.data(), 16), 0);
  std::vector<Bf16> rounded(4);
  file.read_bf16(*file.find("b.f"), rounded.data());
  EXPECT_EQ(rounded[3].bits, 15821);  // 0.1
  file.read_float(*file.find("d"), f_got.data());
  EXPECT_EQ(f_got[0], 0.1f);
  EXPECT_EQ(f_got[1], -2.5f);
  std::vector<int32_t> ints_got(2);
  file.read(*file.find("a.ints"), ints_got.data());
  EXPECT_EQ(ints_got, ints);
  expect_refused([&] { file.read_float(*file.find("a.ints"), f_got.data()); }, kBadInput,
                 {path, "a.ints", "I32", "F32, BF16, F16, F64"});
}

TEST(Safetensors, HalfPrecision) {
  const TempFolder folder;
  const std::vector<uint16_t> bits = {0x3c00, 0xc100, 0x0001, 0x03ff, 0x0400, 0x7bff, 0x7c00, 0x8000, 0x7e00};
  write_safetensors(folder / "h", {{"h", Dtype::f16, {9}, bits.data()}});
  const SafetensorsFile file(folder / "h");
  std::vector<float> v(9);
  file.read_float(*file.find("h"), v.data());
  EXPECT_EQ(std::vector<float>(v.begin(), v.begin() + 7),
            (std::vector<float>{1, -2.5, 0x1p-24f, 0x3ffp-24f, 0x1p-14f, 65504,
                                std::numeric_limits<float>::infinity()}));
  EXPECT_TRUE(v[7] == 0 && std::signbit(v[7]));
  EXPECT_TRUE(std::isnan(v[8]));
}

TEST(Safetensors, WriterRefusesTwoTensorsOfOneNameAndAPathThatCannotBeWritten) {
  const TempFolder folder;
  const float x = 1;
  expect_refused(
      [&] {
        write_safetensors(folder / "x", {{"a", Dtype::f32, {1}, &x}, {"a", Dtype::f32, {1}, &x}});
      },
      kFailed, {"one name"});
  expect_refused(
      [&] {
        write_safetensors(folder / "no/x", {{"a", Dtype::f32, {1}, &x}});
      },
      kFailed, {folder / "no/x", "No such file"});
}

TEST(Safetensors, ReadsTheGoldenTarget) {
  const SafetensorsFile file(kGolden + "tiny-qwen3/model.safetensors");
  const TensorInfo* embed = file.find("model.embed_tokens.weight");
  ASSERT_NE(embed, nullptr);
  EXPECT_EQ(shape_text(embed->shape), "[256, 64]");
  std::vector<float> values(256 * 64);
  file.read_float(*embed, values.data());
  // the first values by the rule that made the file, and the embedding of id 11 as the reference printed it
  EXPECT_EQ(values[0], round_bf16(-0.2574191093444824f));
  EXPECT_EQ(values[1], round_bf16(-0.35996365547180176f));
  EXPECT_EQ(values[11 * 64], -0.0079345703125f);
  EXPECT_EQ(values[11 * 64 + 1], -0.79296875f);
}

}  // namespace
}  // namespace slip::testing
