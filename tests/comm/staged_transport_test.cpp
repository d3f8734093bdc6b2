// Two ranks that share a GPU: device memory by way of the host.
#include "comm/staged_transport.hpp"

#include <optional>

#include "comm/device_bytes.hpp"
#include "comm/session.hpp"
#include "support/queue.hpp"

namespace slip::testing {
namespace {

class Staged : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(world().size(), 2);
    transport_.emplace(world().dup("transport", soon()));
  }
  void TearDown() override {
    EXPECT_EQ(transport_->in_flight(), 0);
    barrier(world(), soon(), "the end of a test");
  }
  const Queue& queue() const { return queue_.get(); }
  StagedTransport& transport() { return *transport_; }
  int me() const { return world().rank(); }
  int peer() const { return 1 - world().rank(); }
  void finish(Transfer t) { wait(*transport_, t, peer(), soon(), "a tensor"); }

 private:
  TestQueue queue_ = make_queue(Device::cuda);
  std::optional<StagedTransport> transport_;
};

// Both directions at once. A short message that follows a long one arrives second.
TEST_F(Staged, EveryByteInOrder) {
  const std::vector<int64_t> sizes = {64 << 20, 1, 4095, 4096, 4097, 1 << 20, 65537, 2};
  std::vector<DeviceBytes> in, out;
  for (size_t i = 0; i < sizes.size(); ++i) {
    out.emplace_back(queue(), byte_pattern(sizes[i], 10 * me() + static_cast<int>(i)));
    in.emplace_back(queue(), sizes[i]);
  }
  for (int round = 0; round < 2; ++round) {  // the second reuses what the first has taken
    std::vector<Transfer> receives, sends;
    const Fence now = transport().fence(queue());
    for (size_t i = 0; i < sizes.size(); ++i) {
      receives.push_back(transport().post_recv(peer(), in[i].data(), sizes[i], now));
      sends.push_back(transport().post_send(peer(), out[i].data(), sizes[i], now));
    }
    EXPECT_EQ(transport().in_flight(), 2 * static_cast<int>(sizes.size()));
    for (size_t i = sizes.size(); i-- > 0;) {  // waited for in another order than posted
      finish(receives[i]);
      finish(sends[i]);
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_TRUE(in[i].read() == byte_pattern(sizes[i], 10 * peer() + static_cast<int>(i))) << sizes[i];
      EXPECT_TRUE(transport().test(receives[i]));  // for ever
      zero(in[i].data(), sizes[i], queue());
    }
  }
}

TEST_F(Staged, ManyMessages) {
  constexpr int kCount = 200;
  const auto size = [](int i) { return int64_t{1 + i * 37 % 5000}; };
  std::vector<DeviceBytes> in, out;
  std::vector<Transfer> transfers;
  for (int i = 0; i < kCount; ++i) {
    out.emplace_back(queue(), byte_pattern(size(i), me() + i));
    in.emplace_back(queue(), size(i));
  }
  for (int i = 0; i < kCount; ++i) {
    const Fence now = transport().fence(queue());
    transfers.push_back(transport().post_send(peer(), out[static_cast<size_t>(i)].data(), size(i), now));
    transfers.push_back(transport().post_recv(peer(), in[static_cast<size_t>(i)].data(), size(i), now));
    if (i % 7 == 0) finish(transfers[static_cast<size_t>(i)]);  // some of those before
  }
  for (const Transfer t : transfers) finish(t);
  for (int i = 0; i < kCount; ++i) {
    EXPECT_TRUE(in[static_cast<size_t>(i)].read() == byte_pattern(size(i), peer() + i)) << i;
  }
}

// What is sent is written late, just before the fence; what follows in the queue afterwards is not waited
// for.
TEST_F(Staged, ASendFollowsItsFence) {
  constexpr int64_t kBytes = 3 << 20;
  const DeviceBytes tensor(queue(), kBytes);
  for (int round = 0; round < 4; ++round) {
    if (me() == 0) {
      const DeviceBytes made(queue(), byte_pattern(kBytes, round));
      delay(queue());
      copy_on_device(tensor.data(), made.data(), kBytes, queue());
      finish(transport().post_send(1, tensor.data(), kBytes, transport().fence(queue())));
      EXPECT_TRUE(tensor.read() == byte_pattern(kBytes, round)) << round;
    } else {
      finish(transport().post_recv(0, tensor.data(), kBytes, transport().fence(queue())));
      EXPECT_TRUE(tensor.read() == byte_pattern(kBytes, round)) << round;
    }
  }
}

// The slot that is received into is still being read, late, by what was queued before the fence.
TEST_F(Staged, AReceiveFollowsItsFence) {
  constexpr int64_t kBytes = 3 << 20;
  if (me() == 0) {
    const DeviceBytes tensor(queue(), byte_pattern(kBytes, 1));
    finish(transport().post_send(1, tensor.data(), kBytes, transport().fence(queue())));
  } else {
    const DeviceBytes slot(queue(), byte_pattern(kBytes, 2)), kept(queue(), kBytes);
    delay(queue());
    copy_on_device(kept.data(), slot.data(), kBytes, queue());
    finish(transport().post_recv(0, slot.data(), kBytes, transport().fence(queue())));
    EXPECT_TRUE(kept.read() == byte_pattern(kBytes, 2));
    EXPECT_TRUE(slot.read() == byte_pattern(kBytes, 1));
  }
}

TEST_F(Staged, ASilentPeerIsNamed) {
  const DeviceBytes tensor(queue(), byte_pattern(10, me()));
  if (me() == 0) {
    const Transfer t = transport().post_recv(1, tensor.data(), 10, {});
    const std::string text = message_of(kPeerFailed, [&] {
      wait(transport(), t, 1, deadline_in(0.3), "features of train row 3 of epoch 0");
    });
    EXPECT_TRUE(contains(text, "rank 1 on ") && contains(text, "train row 3")) << text;
    barrier(world(), soon(), "now");
    finish(t);
    EXPECT_EQ(tensor.read(), byte_pattern(10, 1));
  } else {
    barrier(world(), soon(), "now");
    finish(transport().post_send(0, tensor.data(), 10, {}));
  }
}

}  // namespace
}  // namespace slip::testing
