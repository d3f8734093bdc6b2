// model.safetensors.index.json, in a folder with two shards: what it names, and nothing outside.
#include <filesystem>

#include "fuzz/target.hpp"
#include "io/safetensors.hpp"

namespace {

// Two shards with a tensor each, and a file outside of the folder that no index may reach.
std::string shards() {
  using namespace slip;
  const std::string outside = testing::file_of({nullptr, 0}, "outside.safetensors");
  const std::string folder = std::filesystem::path(outside).parent_path().string() + "/model";
  std::filesystem::create_directories(folder);
  const float x[2] = {1, 2};
  write_safetensors(folder + "/a.safetensors", {{"a", Dtype::f32, {2}, x}});
  write_safetensors(folder + "/b.safetensors", {{"b", Dtype::f32, {2}, x}});
  write_safetensors(outside, {{"outside", Dtype::f32, {2}, x}});
  return folder;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace slip;
  static const std::string folder = shards();
  testing::take_or_refuse([&] {
    testing::file_of({data, size}, "model/model.safetensors.index.json");
    const WeightFolder weights(folder);
    if (weights.find("outside") != nullptr) std::abort();
    for (const std::string& name : weights.names()) {
      const TensorInfo& t = *weights.find(name);
      std::vector<float> values(static_cast<size_t>(t.count()));
      weights.read_float(t, values.data());
    }
  });
  return 0;
}
