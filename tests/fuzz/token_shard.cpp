// Token shards whose content lies: the bytes are a list of changes to a good shard, which HDF5 then writes.
// What is accepted must be sound by a second look at what was written. The bytes of the file itself are not
// changed: the HDF5 library crashes on some broken files (1.10.8: use after free while attributes are read),
// before any check of ours.
#include "io/token_shard.hpp"

#include <algorithm>
#include <cstdlib>

#include "fuzz/changes.hpp"
#include "fuzz/target.hpp"
#include "io/shard_bytes.hpp"

namespace {

using slip::testing::Changes;
using slip::testing::ShardSpec;

void change(ShardSpec& s, Changes& c) {
  static const std::vector<std::string> numbers = [] {
    std::vector<std::string> all = {"documents", "tokens", "supervised_tokens"};
    for (const auto& [name, value] : ShardSpec{}.numbers) all.push_back(name);
    return all;
  }();
  static const std::vector<std::string> items = [] {
    std::vector<std::string> all = {"input_ids", "loss_mask", "doc_offsets", "token_bytes",
                                    "token_byte_offsets"};
    for (const auto& [name, value] : ShardSpec{}.texts) all.push_back(name);
    return all;
  }();
  const hid_t types[] = {H5T_STD_I32LE, H5T_STD_I32BE, H5T_STD_I64LE, H5T_STD_U8LE, H5T_IEEE_F32LE};
  const std::string number = numbers[c.byte() % numbers.size()], item = items[c.byte() % items.size()];
  switch (c.byte() % 11) {
    case 0:
      s.numbers[number] = c.number();
      break;
    case 1:
      c.of(s.ids);
      break;
    case 2:
      c.of(s.mask);
      break;
    case 3:
      c.of(s.offsets);
      break;
    case 4:
      s.leave_out.insert(c.byte() % 2 == 0 ? number : item);
      break;
    case 5:
      s.ids_type = types[c.byte() % std::size(types)];
      break;
    case 6:
      s.variable_text = !s.variable_text, s.deflate = c.byte() % 2 == 0;
      break;
    case 7:
      s.crc32[item]["crc32"] = c.number();
      break;
    case 8:
      s.texts[items[5 + c.byte() % 6]] = std::string(c.byte(), static_cast<char>(c.byte()));
      break;
    case 9:
      c.of(s.token_bytes);
      break;
    case 10:
      if (s.token_byte_offsets.empty()) s.token_byte_offsets.resize(273), s.token_bytes = {1, 2, 3};
      c.of(s.token_byte_offsets);
      break;
  }
}

void must_be_sound(const ShardSpec& s, const slip::TokenShardInfo& info) {
  const auto sound = [](bool condition) {
    if (!condition) std::abort();
  };
  sound(info.tokens == static_cast<int64_t>(s.ids.size()) && s.mask.size() == s.ids.size());
  sound(info.documents + 1 == static_cast<int64_t>(s.offsets.size()));
  sound(s.offsets.front() == 0 && s.offsets.back() == info.tokens);
  sound(std::adjacent_find(s.offsets.begin(), s.offsets.end(), std::greater_equal<>()) == s.offsets.end());
  sound(std::all_of(s.ids.begin(), s.ids.end(), [&](int64_t id) { return id >= 0 && id < info.vocab_size; }));
  sound(std::all_of(s.mask.begin(), s.mask.end(), [](uint8_t m) { return m <= 1; }));
  sound(info.mask_token_id >= 0 && info.mask_token_id < info.vocab_size && s.ids_type == H5T_STD_I32LE);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace slip;
  H5open();  // the types above are numbers that it gives
  ShardSpec spec = ShardSpec::of({3, 1, 5});
  for (Changes c{data, data + std::min<size_t>(size, 64)}; c.any();) change(spec, c);
  const std::string path = testing::file_of({nullptr, 0});
  testing::write_shard(path, spec);
  testing::take_or_refuse([&] {
    const TokenShard shard = open_token_shard(path);
    check_shard(shard, shard.info.vocab_size);
    must_be_sound(spec, shard.info);
  });
  return 0;
}
