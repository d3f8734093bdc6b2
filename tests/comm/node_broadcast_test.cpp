// 2 ranks or more: what rank 0 has is everywhere, on the CPU, where ranks share a GPU, and by NCCL where each
// has one.
#include "comm/node_broadcast.hpp"

#include "comm/session.hpp"
#include "support/test_device.hpp"

namespace slip::testing {
namespace {

// Differs from byte to byte, from piece to piece and from seed to seed.
std::vector<char> pattern(int64_t bytes, int seed) {
  std::vector<char> v(static_cast<size_t>(bytes));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<char>(i * 31 + i / 251 + static_cast<size_t>(seed) * 7);
  return v;
}

void pass_every_byte(bool nccl, const Queue& queue) {
  NodeBroadcast broadcast(split_by_node(world(), 0, "node", soon()), nccl, 60, queue);
  EXPECT_EQ(broadcast.root(), world().rank() == 0);
  const std::vector<int64_t> sizes = {1, 4097, 3 << 20, 5, 1 << 20};
  std::vector<Buffer> pieces;
  for (size_t i = 0; i < sizes.size(); ++i) {
    pieces.emplace_back(kTestDevice == Device::cpu ? Place::host : Place::device, sizes[i]);
    upload(pieces[i].as<char>(), pattern(sizes[i], broadcast.root() ? 1 + static_cast<int>(i) : 77), queue);
    broadcast.pass(pieces[i].data(), sizes[i]);
  }
  broadcast.finish();
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_TRUE(downloaded(pieces[i].as<char>(), sizes[i], queue) ==
                pattern(sizes[i], 1 + static_cast<int>(i)))
        << i;
  }
}

TEST(NodeBroadcast, EveryByteOfEveryPiece) { pass_every_byte(false, make_queue(kTestDevice)); }

#if SLIP_TEST_GPU
TEST(NodeBroadcast, EveryByteByNccl) {
  if (cuda_device_count() < world().size()) GTEST_SKIP() << "needs a GPU for each rank";
  const CudaQueue queue(session().local_rank());
  pass_every_byte(true, queue);
}
#endif

TEST(NodeBroadcast, RanksOfOneKindOnOneHost) {
  const int size = world().size(), me = world().rank();
  const Comm kinds = split_by_node(world(), me == 0 ? 0 : 1, "kinds", soon());
  EXPECT_EQ(kinds.size(), me == 0 ? 1 : size - 1);
  EXPECT_FALSE(static_cast<bool>(split_by_node(world(), -1, "none", soon())));
}

}  // namespace
}  // namespace slip::testing
