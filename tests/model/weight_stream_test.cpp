#include "model/weight_stream.hpp"

#include <cstring>
#include <fstream>

#include "io/files.hpp"
#include "support/kernel_test.hpp"

namespace slip::testing {
namespace {

#if SLIP_TEST_GPU
constexpr Device kDevice = Device::cuda;
#else
constexpr Device kDevice = Device::cpu;
#endif

// A folder of two shards whose bytes all differ from their neighbours.
class WeightStream : public ::testing::Test {
 protected:
  WeightStream() {
    for (size_t t = 0; t < 4; ++t) {
      std::vector<float>& v = values_[t];
      for (int64_t i = 0; i < kCounts[t]; ++i)
        v.push_back(static_cast<float>(1000000 * t) + static_cast<float>(i));
    }
    const auto tensor = [&](size_t t) {
      return TensorToWrite{"t" + std::to_string(t), Dtype::f32, {kCounts[t]}, values_[t].data()};
    };
    write_safetensors(folder_ / "model-a.safetensors", {tensor(0), tensor(2)});
    write_safetensors(folder_ / "model-b.safetensors", {tensor(1), tensor(3)});
    write_file(folder_ / "model.safetensors.index.json",
               R"({"weight_map": {"t0": "model-a.safetensors", "t1": "model-b.safetensors",
                                  "t2": "model-a.safetensors", "t3": "model-b.safetensors"}})");
  }
  static constexpr int64_t kCounts[4] = {1000, 1, 4097, 333};
  TempFolder folder_;
  std::vector<float> values_[4];
  TestQueue queue_ = make_queue(kDevice);
};

TEST_F(WeightStream, EveryByteInItsPlace) {
  const WeightFolder folder(folder_.path());
  for (const StreamLimits& limits : {StreamLimits{}, StreamLimits{1000, 3}, StreamLimits{256, 8}}) {
    std::vector<DeviceArray<float>> arrays;
    std::vector<WeightPiece> pieces;
    for (size_t t : {3, 1, 0, 2}) {
      arrays.emplace_back(queue_, 1, kCounts[t]);
      const TensorInfo* info = folder.find("t" + std::to_string(t));
      // Two pieces, in the wrong order.
      const int64_t half = kCounts[t] / 2 * 4, whole = kCounts[t] * 4;
      char* to = reinterpret_cast<char*>(arrays.back().data());
      pieces.push_back({info, half, whole - half, to + half});
      if (half > 0) pieces.push_back({info, 0, half, to});
    }
    stream_weights(folder, pieces, queue_, limits);
    size_t i = 0;
    for (size_t t : {3, 1, 0, 2}) EXPECT_EQ(arrays[i++].elements(), values_[t]) << "t" << t;
  }
}

TEST_F(WeightStream, NothingToRead) { stream_weights(WeightFolder(folder_.path()), {}, queue_); }

// The shard becomes shorter after its header was checked.
TEST_F(WeightStream, AFileThatEndsEarlyIsNamed) {
  const WeightFolder folder(folder_.path());
  const std::string path = folder_ / "model-b.safetensors";
  write_file(path, read_file(path).substr(0, 600));
  const DeviceArray<float> to(queue_, 1, kCounts[3]);
  expect_refused(
      [&] {
        stream_weights(folder, {{folder.find("t3"), 0, kCounts[3] * 4, to.data()}}, queue_, {64, 4});
      },
      kBadInput, {path, "600"});
}

}  // namespace
}  // namespace slip::testing
