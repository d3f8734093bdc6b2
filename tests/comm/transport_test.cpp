// 2 ranks or more: rank 0 and the last one talk.
#include <cstring>
#include <thread>

#include "comm/mpi_transport.hpp"
#include "comm/session.hpp"

namespace slip::testing {
namespace {

const Queue kCpu{};

std::vector<char> pattern(int64_t bytes, int seed) {
  std::vector<char> v(static_cast<size_t>(bytes));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<char>(i * 31 + i / 251 + static_cast<size_t>(seed) * 7);
  return v;
}

// Both directions at once, in pieces of 1000 bytes; sizes of none, one, a piece and around it.
TEST(Transport, EveryByteInOrderAndInPieces) {
  MpiTransport transport(world().dup("transport", soon()), 1000);
  const int last = world().size() - 1;
  if (world().rank() == 0 || world().rank() == last) {
    const int peer = last - world().rank();
    const std::vector<int64_t> sizes = {0, 1, 999, 1000, 1001, 2000, 123457};
    std::vector<std::vector<char>> in, out;
    std::vector<Transfer> receives, sends;
    for (size_t i = 0; i < sizes.size(); ++i) {
      out.push_back(pattern(sizes[i], world().rank() + static_cast<int>(i)));
      in.emplace_back(static_cast<size_t>(sizes[i]) + 8, '\x5a');
    }
    const Fence now = transport.fence(kCpu);
    for (size_t i = 0; i < sizes.size(); ++i) {
      receives.push_back(transport.post_recv(peer, in[i].data(), sizes[i], now));
      sends.push_back(transport.post_send(peer, out[i].data(), sizes[i], now));
    }
    EXPECT_EQ(transport.in_flight(), 2 * static_cast<int>(sizes.size()));
    for (size_t i = sizes.size(); i-- > 0;) {  // waited for in another order than posted
      wait(transport, receives[i], peer, soon(), "a tensor");
      wait(transport, sends[i], peer, soon(), "a tensor");
    }
    EXPECT_EQ(transport.in_flight(), 0);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const std::vector<char> want = pattern(sizes[i], peer + static_cast<int>(i));
      EXPECT_TRUE(std::equal(want.begin(), want.end(), in[i].begin())) << sizes[i];
      EXPECT_EQ(std::string(in[i].end() - 8, in[i].end()), std::string(8, '\x5a')) << sizes[i];
      EXPECT_TRUE(transport.test(receives[i]));  // for ever
    }
  }
  barrier(world(), soon(), "the end");
}

TEST(Transport, ASilentPeerIsNamed) {
  MpiTransport transport(world().dup("transport", soon()));
  if (world().rank() == 0) {
    std::vector<char> in(10);
    const Transfer t = transport.post_recv(1, in.data(), 10, {});
    const std::string text = message_of(
        kPeerFailed, [&] { wait(transport, t, 1, deadline_in(0.3), "features of train row 3 of epoch 0"); });
    EXPECT_TRUE(contains(text, "rank 1 on ")) << text;
    EXPECT_TRUE(contains(text, "train row 3")) << text;
    barrier(world(), soon(), "now");
    wait(transport, t, 1, soon(), "the same after all");
    EXPECT_EQ(in, pattern(10, 1));
  } else {
    barrier(world(), soon(), "now");
    if (world().rank() == 1) {
      const std::vector<char> out = pattern(10, 1);
      wait(transport, transport.post_send(0, out.data(), 10, {}), 0, soon(), "a tensor");
    }
  }
  barrier(world(), soon(), "the end");
}

TEST(Transport, AShorterMessageIsRefused) {
  MpiTransport transport(world().dup("transport", soon()), 1000);
  if (world().rank() == 0) {
    std::vector<char> in(1500);
    const Transfer t = transport.post_recv(1, in.data(), 1500, {});
    const std::string text = message_of(kPeerFailed, [&] { wait(transport, t, 1, soon(), "a tensor"); });
    EXPECT_TRUE(contains(text, "400 bytes") && contains(text, "500")) << text;
  } else if (world().rank() == 1) {
    const std::vector<char> out = pattern(1400, 1);
    wait(transport, transport.post_send(0, out.data(), 1400, {}), 0, soon(), "a tensor");
  }
  barrier(world(), soon(), "the end");
}

}  // namespace
}  // namespace slip::testing
