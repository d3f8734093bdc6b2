#include "model/weight_stream.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "io/files.hpp"
#include "support/kernel_test.hpp"
#include "support/test_device.hpp"

// Threads that the system still gives; -1: as many as are asked for.
static std::atomic<int> threads_left = -1;

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*run)(void*), void* with) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const Create create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left == 0) return EAGAIN;
  if (threads_left > 0) --threads_left;
  return create(thread, how, run, with);
}

namespace slip::testing {
namespace {

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
  TestQueue queue_ = make_queue(kTestDevice);
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
    stream_weights(folder, pieces, queue_, {}, limits);
    size_t i = 0;
    for (size_t t : {3, 1, 0, 2}) EXPECT_EQ(arrays[i++].elements(), values_[t]) << "t" << t;
  }
}

TEST_F(WeightStream, TooFewThreads) {
  const WeightFolder folder(folder_.path());
  const DeviceArray<float> to(queue_, 1, kCounts[2]);
  threads_left = 2;
  try {
    stream_weights(folder, {{folder.find("t2"), 0, kCounts[2] * 4, to.data()}}, queue_, {}, {256, 8});
    ADD_FAILURE() << "there were threads enough";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "no thread to read weights: Resource temporarily unavailable; `ulimit -u` and the container "
                 "limit how many there may be");
  }
  threads_left = -1;
}

TEST_F(WeightStream, NothingToRead) { stream_weights(WeightFolder(folder_.path()), {}, queue_); }

// A file with a hole, read for a second or more whatever the disk: bytes come, and say so.
TEST_F(WeightStream, ProgressWhileBytesCome) {
  constexpr int64_t kBytes = int64_t{256} << 20, kPiece = 1 << 20, kPlaces = 64;
  const std::string header = R"({"t":{"dtype":"U8","shape":[268435456],"data_offsets":[0,268435456]}})";
  const TempFolder folder;
  const uint64_t length = header.size();
  write_file(folder / "model.safetensors",
             std::string(reinterpret_cast<const char*>(&length), sizeof length) + header);
  std::filesystem::resize_file(folder / "model.safetensors", sizeof length + length + kBytes);
  const WeightFolder weights(folder.path());
  const DeviceArray<float> to(queue_, 1, kPlaces * kPiece / 4);
  // As many places as there are pieces, where several readers take them.
  const auto pieces_of = [&](int64_t count) {
    std::vector<WeightPiece> pieces;
    for (int64_t i = 0; i < count; ++i)
      pieces.push_back(
          {weights.find("t"), i * kPiece % kBytes, kPiece, to.data() + i % kPlaces * (kPiece / 4)});
    return pieces;
  };
  const auto seconds = [](auto from, auto until) {
    return std::chrono::duration<double>(until - from).count();
  };
  const auto now = [] { return std::chrono::steady_clock::now(); };
  int calls = 0;
  double longest = 0, took = 0;
  auto last = now();
  LoadHooks hooks;
  hooks.progress = [&] {
    longest = std::max(longest, seconds(last, now()));
    last = now();
    ++calls;
  };
  for (int64_t count = kPlaces; took < 1; count *= 2) {
    calls = 0;
    longest = 0;
    const auto start = last = now();
    stream_weights(weights, pieces_of(count), queue_, hooks, {kPiece, 1});
    took = seconds(start, now());
  }
  EXPECT_GE(calls, 1 + static_cast<int>(took / 0.5));
  EXPECT_LT(longest, 1.5);
  hooks.progress = [&] { fail("enough"); };
  EXPECT_THROW(stream_weights(weights, pieces_of(kPlaces), queue_, hooks, {kPiece, 4}), Error);
}

// One rank reads and passes on, another takes what comes: here one after the other, by a list of copies.
TEST_F(WeightStream, WhatIsReadIsPassedOnInOrder) {
  const WeightFolder folder(folder_.path());
  std::vector<std::vector<char>> wire;
  const auto run = [&](bool reads, const auto& pass) {
    std::vector<DeviceArray<float>> arrays;
    std::vector<WeightPiece> pieces;
    for (size_t t : {3, 1, 0, 2}) {
      arrays.emplace_back(queue_, 1, kCounts[t]);
      pieces.push_back({folder.find("t" + std::to_string(t)), 0, kCounts[t] * 4, arrays.back().data()});
    }
    int finished = 0;
    WeightSpread spread{reads, pass, [&] { ++finished; }};
    stream_weights(folder, pieces, queue_, {{}, &spread}, {256, 4});
    EXPECT_EQ(finished, 1);
    size_t i = 0;
    for (size_t t : {3, 1, 0, 2}) EXPECT_EQ(arrays[i++].elements(), values_[t]) << "t" << t;
  };
  run(true, [&](void* data, int64_t bytes) {
    wire.emplace_back(static_cast<size_t>(bytes));
    copy_to_host(wire.back().data(), data, bytes, queue_);
    synchronize(queue_);
  });
  for (const char* name : {"model-a.safetensors", "model-b.safetensors"}) {  // who receives does not read
    const std::string path = folder_ / name, whole = read_file(path);
    std::string spoilt = whole;
    std::fill(spoilt.end() - 400, spoilt.end(), '\x7f');
    write_file(path, spoilt);
  }
  size_t next = 0;
  run(false, [&](void* data, int64_t bytes) {
    ASSERT_EQ(static_cast<int64_t>(wire.at(next).size()), bytes);
    copy_to_device(data, wire[next++].data(), bytes, queue_);
    synchronize(queue_);
  });
  EXPECT_EQ(next, wire.size());
}

// The shard becomes shorter after its header was checked.
TEST_F(WeightStream, AFileThatEndsEarlyIsNamed) {
  const WeightFolder folder(folder_.path());
  const std::string path = folder_ / "model-b.safetensors";
  write_file(path, read_file(path).substr(0, 600));
  const DeviceArray<float> to(queue_, 1, kCounts[3]);
  expect_refused(
      [&] {
        stream_weights(folder, {{folder.find("t3"), 0, kCounts[3] * 4, to.data()}}, queue_, {}, {64, 4});
      },
      kBadInput, {path, "600"});
}

}  // namespace
}  // namespace slip::testing
