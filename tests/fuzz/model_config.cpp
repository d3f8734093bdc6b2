// config.json, read as that of a target, of a published drafter and of a new one.
#include <filesystem>

#include "fuzz/target.hpp"
#include "model/config.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace slip;
  const std::string path = testing::file_of({data, size}, "config.json");
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const auto use = [](const DrafterModel& m) {
    drafter_tensors(m);
    parameter_count(m);
    drafter_config_json(m);
    rope_frequencies(m.rope, m.head_dim);
  };
  TargetModel any;
  any.hidden = 64, any.intermediate = 64, any.layers = 4, any.heads = 2, any.kv_heads = 1, any.head_dim = 16;
  any.vocab = 256, any.max_position = 512;
  testing::take_or_refuse([&] {
    const TargetModel t = read_target_config(folder);
    rope_frequencies(t.rope, t.head_dim);
  });
  testing::take_or_refuse([&] {
    const DrafterModel m = read_drafter_config(path);
    use(m);
    check_fit(m, any, folder);
  });
  testing::take_or_refuse([&] { use(read_new_drafter_config(path, any)); });
  return 0;
}
