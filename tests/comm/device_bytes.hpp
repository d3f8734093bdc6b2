// Bytes on the device with canaries behind them, and a way to make a stream late.
#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "device/buffer.hpp"
#include "device/cuda.hpp"

namespace slip::testing {

// Differs from byte to byte, from piece to piece and from seed to seed.
inline std::vector<char> byte_pattern(int64_t bytes, int seed) {
  std::vector<char> v(static_cast<size_t>(bytes));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<char>(i * 31 + i / 251 + i / 65537 + static_cast<size_t>(seed) * 7);
  return v;
}

class DeviceBytes {
 public:
  DeviceBytes(const Queue& q, std::vector<char> contents)
      : queue_(q), bytes_(static_cast<int64_t>(contents.size())), buffer_(Place::device, bytes_ + kGuard) {
    contents.resize(contents.size() + kGuard, kCanary);
    copy_to_device(buffer_.data(), contents.data(), buffer_.bytes(), queue_);
    synchronize(queue_);
  }
  DeviceBytes(const Queue& q, int64_t bytes)
      : DeviceBytes(q, std::vector<char>(static_cast<size_t>(bytes), kCanary)) {}

  void* data() const { return buffer_.data(); }
  int64_t bytes() const { return bytes_; }
  std::vector<char> read() const {  // waits for the queue
    std::vector<char> all(static_cast<size_t>(buffer_.bytes()));
    copy_to_host(all.data(), buffer_.data(), buffer_.bytes(), queue_);
    synchronize(queue_);
    EXPECT_EQ(std::vector<char>(all.end() - kGuard, all.end()), std::vector<char>(kGuard, kCanary));
    all.resize(static_cast<size_t>(bytes_));
    return all;
  }

 private:
  static constexpr int kGuard = 64;
  static constexpr char kCanary = '\x5a';
  Queue queue_;
  int64_t bytes_;
  Buffer buffer_;
};

// What is queued after this runs 0.1 s later.
inline void delay(const Queue& q) {
  const auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); };
  check(cudaLaunchHostFunc(q.stream, sleep, nullptr));
}

}  // namespace slip::testing
