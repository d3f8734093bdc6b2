// An array for a kernel to read or write, where the queue's memory is. It does not start at its allocation,
// its rows are further apart than they are long, and all that surrounds the elements is canaries: NaN for a
// kernel that reads them, a bit pattern that `intact` misses where a kernel wrote them. Outputs start as
// canaries too.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "device/buffer.hpp"
#include "device/queue.hpp"
#include "device/view.hpp"
#include "support/matrix.hpp"

namespace slip::testing {

template <class T> T canary() {
  T x;
  std::memset(&x, 0xa5, sizeof x);
  if constexpr (!std::is_integral_v<T>)
    reinterpret_cast<unsigned char*>(&x)[sizeof x - 1] = 0xff;                   // a NaN ...
  if constexpr (sizeof(T) == 8) reinterpret_cast<unsigned char*>(&x)[6] = 0xf5;  // ... of double
  return x;
}

template <class T> class DeviceArray {
 public:
  // An output. `rows` = 1 for what a kernel takes as a plain pointer.
  DeviceArray(const Queue& q, int64_t rows, int64_t cols) : DeviceArray(q, rows, cols, nullptr) {}
  // An input, or an output that the kernel adds to.
  DeviceArray(const Queue& q, const Matrix& values) : DeviceArray(q, values.rows, values.cols, &values) {}

  View2<T> view() const { return {buffer_.as<T>() + offset_, rows_, cols_, stride_}; }
  T* data() const {
    require(rows_ <= 1, "DeviceArray: more than one row has a stride");
    return buffer_.as<T>() + offset_;
  }

  // Waits for the queue. Row-major without the gaps; fails the test where a canary has changed.
  std::vector<T> elements() const {
    const std::vector<T> image = download();
    EXPECT_TRUE(intact(image));
    std::vector<T> out;
    for (int64_t r = 0; r < rows_; ++r) {
      const auto row = image.begin() + offset_ + r * stride_;
      out.insert(out.end(), row, row + cols_);
    }
    return out;
  }
  std::vector<double> values() const {
    std::vector<double> out;
    for (const T x : elements()) out.push_back(element_value(x));
    return out;
  }
  Matrix matrix() const { return Matrix(rows_, cols_, values()); }
  bool intact() const { return intact(download()); }

 private:
  DeviceArray(const Queue& q, int64_t rows, int64_t cols, const Matrix* values)
      : queue_(q), rows_(rows), cols_(cols) {
    // A GPU reads 16 bytes at a time where rows allow it: whole multiples of 8 stay aligned, odd widths are
    // not.
    const bool odd = q.on_cpu() || (rows > 1 && cols % 8 != 0);
    offset_ = odd ? 13 : 16;
    stride_ = rows <= 1 ? cols : cols + (odd ? 5 : 8);
    std::vector<T> image(static_cast<size_t>(offset_ + rows * stride_ + kGuard), canary<T>());
    for (int64_t r = 0; values != nullptr && r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        image[static_cast<size_t>(offset_ + r * stride_ + c)] = make_element<T>(values->at(r, c));
      }
    }
    count_ = image.size();
    buffer_ = Buffer(q.on_cpu() ? Place::host : Place::device, bytes());
    copy_to_device(buffer_.data(), image.data(), bytes(), q);
    synchronize(q);
  }
  int64_t bytes() const { return static_cast<int64_t>(count_ * sizeof(T)); }
  std::vector<T> download() const {
    std::vector<T> image(count_);
    copy_to_host(image.data(), buffer_.data(), bytes(), queue_);
    synchronize(queue_);
    return image;
  }
  bool intact(const std::vector<T>& image) const {
    const T want = canary<T>();
    for (int64_t i = 0; i < static_cast<int64_t>(image.size()); ++i) {
      const int64_t at = i - offset_;
      if (at >= 0 && at < rows_ * stride_ && at % stride_ < cols_) continue;
      if (std::memcmp(&image[static_cast<size_t>(i)], &want, sizeof want) != 0) return false;
    }
    return true;
  }

  static constexpr int64_t kGuard = 64;
  Queue queue_;
  int64_t rows_, cols_, stride_ = 0, offset_ = 0;
  size_t count_ = 0;
  Buffer buffer_;
};

template <class T> View2<const T> const_view(const DeviceArray<T>& a) { return a.view(); }

}  // namespace slip::testing
