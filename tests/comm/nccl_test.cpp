// What one rank on one GPU shows of NCCL: a communicator starts, moves data, ends, and is aborted in time.
#include "comm/nccl.hpp"

#include "comm/device_bytes.hpp"
#include "comm/session.hpp"
#include "support/device_array.hpp"
#include "support/queue.hpp"

namespace slip::testing {
namespace {

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(world().size(), 1); }
  const Queue& queue() const { return queue_.get(); }
  // Waits for what has been queued, as the program does.
  void finish(const NcclComm& comm) {
    const Event done = make_event();
    check(cudaEventRecord(done.get(), queue().stream));
    comm.wait(done, soon(), "the end of a test's operation");
  }

  TestQueue queue_ = make_queue(Device::cuda);
};

TEST_F(Nccl, StartsAndEndsInTime) {
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < 3; ++i) {  // one after the other, and two at once
    const NcclComm first(world(), "first", soon()), second(world(), "second", soon());
    int size = 0, rank = -1;
    check(ncclCommCount(first.get(), &size));
    check(ncclCommUserRank(second.get(), &rank));
    EXPECT_EQ(size, 1);
    EXPECT_EQ(rank, 0);
    first.check_async();
    second.settle(soon(), "nothing");
  }
  EXPECT_LT(seconds_since(start), 60);
}

TEST_F(Nccl, ASumOverOneRankLeavesItsValues) {
  const NcclComm comm(world(), "sums", soon());
  const Matrix values = random_matrix<float>(1, 1, 100001);
  const DeviceArray<float> x(queue(), values), all(queue(), values);
  allreduce_sum(comm, x.data(), 1, queue().stream, soon());
  allreduce_sum(comm, x.data() + 3, 50000, queue().stream, soon());
  allreduce_sum(comm, all.data(), 100001, queue().stream, soon());
  finish(comm);
  EXPECT_EQ(x.values(), values.values);
  EXPECT_EQ(all.values(), values.values);
}

TEST_F(Nccl, SendsToItself) {
  const NcclComm comm(world(), "self", soon());
  int seed = 0;
  for (const int64_t bytes : {1, 4097, 1 << 20, 64 << 20}) {
    const DeviceBytes out(queue(), byte_pattern(bytes, ++seed)), in(queue(), bytes);
    const size_t count = static_cast<size_t>(bytes);
    check(ncclGroupStart());
    check(ncclSend(out.data(), count, ncclInt8, 0, comm.get(), queue().stream));
    check(ncclRecv(in.data(), count, ncclInt8, 0, comm.get(), queue().stream));
    check(ncclGroupEnd());
    comm.settle(soon(), "NCCL to take a transfer");
    finish(comm);
    EXPECT_TRUE(in.read() == byte_pattern(bytes, seed)) << bytes;
    EXPECT_TRUE(out.read() == byte_pattern(bytes, seed)) << bytes;
  }
}

// The queue is late, so that the sums are still under way when the exception leaves; the next start is sound.
TEST_F(Nccl, AnExceptionAbortsWithoutWaiting) {
  const DeviceArray<float> x(queue(), random_matrix<float>(1, 1, 1 << 20));
  const Clock::time_point start = Clock::now();
  const std::string text = message_of(kPeerFailed, [&] {
    const NcclComm comm(world(), "doomed", soon());
    delay(queue());
    for (int i = 0; i < 20; ++i) allreduce_sum(comm, x.data(), 1 << 20, queue().stream, soon());
    fail_peer("another rank is gone");
  });
  EXPECT_EQ(text, "another rank is gone");
  EXPECT_LT(seconds_since(start), 30);
  synchronize(queue());
  const NcclComm next(world(), "next", soon());
  allreduce_sum(next, x.data(), 1 << 20, queue().stream, soon());
  finish(next);
}

TEST_F(Nccl, AfterAnAbortNothingIsPosted) {
  NcclComm comm(world(), "gradients", soon());
  const DeviceArray<float> x(queue(), random_matrix<float>(1, 1, 100));
  comm.abort();
  comm.abort();  // once is enough
  const auto refused = [&](const std::function<void()>& f) {
    const std::string text = message_of(kPeerFailed, f);
    EXPECT_TRUE(contains(text, "gradients") && contains(text, "aborted")) << text;
  };
  refused([&] { allreduce_sum(comm, x.data(), 100, queue().stream, soon()); });
  refused([&] { comm.check_async(); });
  refused([&] { comm.settle(soon(), "nothing"); });
}

// No time at all: the start is given up, and what had begun is taken down with it.
TEST_F(Nccl, AStartThatTakesTooLongIsGivenUp) {
  const Clock::time_point start = Clock::now();
  const std::string text = message_of(kPeerFailed, [&] { NcclComm(world(), "late", deadline_in(0)); });
  EXPECT_TRUE(contains(text, "a NCCL communicator to start")) << text;
  EXPECT_LT(seconds_since(start), 30);
  const NcclComm next(world(), "next", soon());
  next.check_async();
}

// A mistake that NCCL finds has its text and the exit code of a failed peer.
TEST_F(Nccl, ItsErrorsAreNamed) {
  const NcclComm comm(world(), "errors", soon());
  const DeviceBytes x(queue(), 8);
  const std::string text = message_of(kPeerFailed, [&] {
    check(ncclSend(x.data(), 8, ncclInt8, 7, comm.get(), queue().stream));  // there is no rank 7
    comm.settle(soon(), "NCCL to take a transfer");
  });
  EXPECT_TRUE(contains(text, "NCCL: ")) << text;
}

}  // namespace
}  // namespace slip::testing
