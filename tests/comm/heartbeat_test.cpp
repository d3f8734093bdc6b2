// Heartbeats between forked processes: who is named by whom, when, and with which exit code.
#include "comm/heartbeat.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <functional>
#include <thread>

#include "core/log.hpp"

namespace slip {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr HeartbeatTimes kQuick{
    .beat_s = 0.05, .dead_after_s = 1, .stall_s = 60, .exit_s = 1, .grace_s = 0.5};
constexpr int kNever = 20;  // seconds
#ifdef __SANITIZE_THREAD__
constexpr double kSlow = 3;  // what a sanitizer does to limits
#else
constexpr double kSlow = 1;
#endif

void sleep_s(double s) { std::this_thread::sleep_for(std::chrono::duration<double>(s)); }

// What a healthy rank does all the time.
int work(Heartbeat& h, double seconds) {
  for (const Clock::time_point start = Clock::now(); seconds_since(start) < seconds; sleep_s(0.01)) h.check();
  return 0;
}

struct Job {
  std::vector<int> codes;  // exit codes; a signal is 128 + its number
  std::vector<std::string> lines;
  double seconds = 0;
};

using Body = std::function<int(int rank, Heartbeat&)>;

int child(int rank, int ranks, std::vector<HeartbeatLink> links, const HeartbeatTimes& times,
          const Body& body) {
  log_init(rank, ranks);
  std::vector<std::string> hosts;
  for (int r = 0; r < ranks; ++r) hosts.push_back("host" + std::to_string(r));
  try {
    Heartbeat h(rank, hosts, std::move(links), times);
    return body(rank, h);
  } catch (const Error& e) {
    if (*e.what() != 0) log_error(e.what());
    return e.exit_code();
  }
}

// A stopped child is ended when the others are gone.
Job run(int ranks, const HeartbeatTimes& times, const Body& body) {
  std::vector<std::array<int, 2>> pair(static_cast<size_t>(ranks));
  for (size_t r = 1; r < pair.size(); ++r)
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair[r].data()), 0);
  int out[2];
  EXPECT_EQ(pipe(out), 0);
  const Clock::time_point start = Clock::now();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    pids.push_back(fork());
    if (pids.back() != 0) continue;
    dup2(out[1], 2);
    std::vector<HeartbeatLink> links;
    for (int r = 1; r < ranks; ++r) {
      const auto& p = pair[static_cast<size_t>(r)];
      if (rank == 0) links.push_back({r, p[0]});
      if (rank == r) links.push_back({0, p[1]});
      if (rank != 0) close(p[0]);  // or the others would not see an end
      if (rank != r) close(p[1]);
    }
    _exit(child(rank, ranks, std::move(links), times, body));
  }
  for (size_t r = 1; r < pair.size(); ++r) close(pair[r][0]), close(pair[r][1]);
  close(out[1]);
  Job job{.codes = std::vector<int>(pids.size(), -1)};
  for (size_t left = pids.size(); left > 0; sleep_s(0.005)) {
    bool only_stopped = true;
    for (size_t i = 0; i < pids.size(); ++i) {
      int status = 0;
      if (job.codes[i] >= 0) continue;
      const pid_t done = waitpid(pids[i], &status, WNOHANG | WUNTRACED);
      if (done == pids[i] && WIFSTOPPED(status)) job.codes[i] = 1000, --left;
      if (done == pids[i] && WIFEXITED(status)) job.codes[i] = WEXITSTATUS(status), --left;
      if (done == pids[i] && WIFSIGNALED(status)) job.codes[i] = 128 + WTERMSIG(status), --left;
      if (job.codes[i] < 0) only_stopped = false;
    }
    if (only_stopped || seconds_since(start) > kNever) break;
  }
  job.seconds = seconds_since(start);
  for (size_t i = 0; i < pids.size(); ++i) {
    if (job.codes[i] < 0 || job.codes[i] == 1000) kill(pids[i], SIGKILL), waitpid(pids[i], nullptr, 0);
  }
  std::string text;
  char piece[4096];
  for (ssize_t n; (n = read(out[0], piece, sizeof piece)) > 0;) text.append(piece, static_cast<size_t>(n));
  close(out[0]);
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
    job.lines.push_back(text.substr(at, end - at));
  return job;
}

// Rank `victim` works a little and then does what it is told to; the others would work for ever.
Job lose(int victim, int ranks, const std::function<void()>& how, const HeartbeatTimes& times = kQuick) {
  return run(ranks, times, [&](int rank, Heartbeat& h) {
    h.set(6, "capture");
    if (rank != victim) return work(h, kNever);
    work(h, 0.2);
    h.set(7, "save");
    how();
    return work(h, kNever);
  });
}

const auto kKilled = [] { std::raise(SIGKILL); };
const auto kStopped = [] { std::raise(SIGSTOP); };

TEST(Heartbeat, NobodyIsMissedAtAGoodEnd) {
  for (const int late : {0, 1, 2}) {
    const Job job = run(3, kQuick, [&](int rank, Heartbeat& h) { return work(h, rank == late ? 1.5 : 0.1); });
    EXPECT_EQ(job.codes, (std::vector<int>{0, 0, 0}));
    EXPECT_TRUE(job.lines.empty()) << job.lines[0];
  }
}

TEST(Heartbeat, OneThatIsKilledIsNamedAtOnce) {
  const Job job = lose(2, 4, kKilled);
  EXPECT_EQ(job.codes, (std::vector<int>{4, 4, 137, 4}));
  ASSERT_EQ(job.lines.size(), 1u) << job.lines[1];
  EXPECT_THAT(job.lines[0], AllOf(HasSubstr("slipstream[0]"), HasSubstr("rank 2 on host2"),
                                  HasSubstr("step 7"), HasSubstr("phase save"), HasSubstr("closed")));
  EXPECT_LT(job.seconds, 1.0 * kSlow);  // not dead_after_s
}

TEST(Heartbeat, OneThatIsStoppedIsNamedAfterAWhile) {
  const Job job = lose(1, 3, kStopped);
  EXPECT_EQ(job.codes, (std::vector<int>{4, 1000, 4}));
  ASSERT_EQ(job.lines.size(), 1u);
  EXPECT_THAT(job.lines[0], AllOf(HasSubstr("rank 1 on host1"), HasSubstr("step 7"), HasSubstr("phase save"),
                                  HasSubstr("no sign of life")));
  EXPECT_GT(job.seconds, 1.0);
  EXPECT_LT(job.seconds, 5.0 * kSlow);
}

TEST(Heartbeat, RankOneNamesRankZero) {
  for (const auto& how : {std::function<void()>(kKilled), std::function<void()>(kStopped)}) {
    const Job job = lose(0, 3, how);
    EXPECT_THAT(job.codes[0], AnyOf(137, 1000));
    EXPECT_EQ(job.codes[1], 4);
    EXPECT_EQ(job.codes[2], 4);
    // Here nothing ends rank 2 when rank 1 has ended, as a launcher does: it says it too when its grace is
    // over.
    ASSERT_GE(job.lines.size(), 1u);
    EXPECT_THAT(job.lines[0], AllOf(HasSubstr("slipstream[1]"), HasSubstr("rank 0 on host0"),
                                    HasSubstr("step 7"), HasSubstr("phase save")));
  }
}

TEST(Heartbeat, TheLastOneNamesRankZero) {
  Job job;
  for (int again = 0; again < 20; ++again) {  // one of the two may still see the other go, and say it
    job = run(3, kQuick, [](int rank, Heartbeat& h) {
      if (rank < 2) std::raise(SIGKILL);
      return work(h, kNever);
    });
    if (job.lines.size() == 1 && job.lines[0].find("slipstream[2]") != std::string::npos) break;
  }
  EXPECT_EQ(job.codes, (std::vector<int>{137, 137, 4}));
  ASSERT_EQ(job.lines.size(), 1u);
  EXPECT_THAT(job.lines[0], AllOf(HasSubstr("slipstream[2]"), HasSubstr("rank 0 on host0")));
}

TEST(Heartbeat, ThreadsEndProcessesWhoseMainThreadHangs) {
  const Job job = run(3, kQuick, [](int rank, Heartbeat&) {
    if (rank == 1) sleep_s(0.2), std::raise(SIGKILL);
    sleep_s(kNever);
    return 0;
  });
  EXPECT_EQ(job.codes, (std::vector<int>{4, 137, 4}));
  EXPECT_EQ(job.lines.size(), 1u);
  EXPECT_LT(job.seconds, 3.0 * kSlow);
}

TEST(Heartbeat, AMainThreadThatHangsGivesItselfUp) {
  HeartbeatTimes times = kQuick;
  times.stall_s = 1;
  const Job job = lose(
      2, 3, [] { sleep_s(kNever); }, times);
  EXPECT_EQ(job.codes, (std::vector<int>{4, 4, 4}));
  ASSERT_EQ(job.lines.size(), 1u) << job.lines[1];
  EXPECT_THAT(job.lines[0], AllOf(HasSubstr("slipstream[2]"), HasSubstr("rank 2 on host2"),
                                  HasSubstr("no progress"), HasSubstr("step 7"), HasSubstr("phase save")));
}

TEST(Heartbeat, TheEndHasALimitOfItsOwn) {  // exit_s is 1, stall_s 60
  const Job job = run(2, kQuick, [](int rank, Heartbeat& h) {
    h.set(9, "exit");
    if (rank == 0) return work(h, kNever);
    sleep_s(kNever);
    return 0;
  });
  EXPECT_EQ(job.codes, (std::vector<int>{4, 4}));
  ASSERT_EQ(job.lines.size(), 1u);
  EXPECT_THAT(job.lines[0], AllOf(HasSubstr("rank 1 on host1"), HasSubstr("phase exit")));
}

TEST(Heartbeat, OneThatFailsSaysItItself) {
  for (const int victim : {0, 2}) {
    const Job job = lose(victim, 3, [] { fail_input("the file is bad"); });
    std::vector<int> want(3, 4);
    want[static_cast<size_t>(victim)] = 3;
    EXPECT_EQ(job.codes, want);
    ASSERT_EQ(job.lines.size(), 1u) << job.lines[1];
    EXPECT_THAT(job.lines[0], HasSubstr("the file is bad"));
  }
}

TEST(Heartbeat, OneThatStoodStillAndGoesOnBlamesNobody) {
  HeartbeatTimes times = kQuick;
  times.dead_after_s = 3;
  const Job job = run(2, times, [](int rank, Heartbeat& h) {
    if (rank == 0) {  // stands still for less than its peers allow, but for longer than ... a beat
      const pid_t me = getpid();
      if (fork() == 0) {
        sleep_s(1.5);
        kill(me, SIGCONT);
        _exit(0);
      }
      std::raise(SIGSTOP);
    }
    return work(h, 1.0);
  });
  EXPECT_TRUE(job.lines.empty()) << job.lines[0];
}

TEST(HeartbeatDoor, RanksComeInByTcp) {
  HeartbeatDoor door = open_heartbeat_door(4);
  EXPECT_THAT(door.addresses, HasSubstr("127.0.0.1"));
  const HeartbeatDoor seen{-1, door.port, door.cookie, door.addresses};
  std::vector<std::thread> others;
  std::array<int, 4> fds{};
  for (const int rank : {3, 1, 2})
    others.emplace_back(
        [&, rank] { fds[static_cast<size_t>(rank)] = knock(seen, rank, deadline_in(10)).fd; });
  const std::vector<HeartbeatLink> links =
      admit_ranks(door, {.hosts = {"a", "b", "c", "d"}}, 4, deadline_in(10));
  for (std::thread& t : others) t.join();
  ASSERT_EQ(links.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(links[i].rank, static_cast<int>(i) + 1);
    const char word = static_cast<char>('a' + i);
    EXPECT_EQ(write(fds[i + 1], &word, 1), 1);
    char got = 0;
    pollfd p{.fd = links[i].fd, .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&p, 1, 5000), 1);
    EXPECT_EQ(read(links[i].fd, &got, 1), 1);
    EXPECT_EQ(got, word);
    close(links[i].fd);
    close(fds[i + 1]);
  }
}

TEST(HeartbeatDoor, StrangersStayOutAndTheMissingAreNamed) {
  HeartbeatDoor door = open_heartbeat_door(3);
  const HeartbeatDoor seen{-1, door.port, door.cookie, door.addresses},
      wrong{-1, door.port, door.cookie + 1, door.addresses};
  std::string stranger, missing;
  int fd = -1;
  std::thread others([&] {
    fd = knock(seen, 1, deadline_in(10)).fd;
    try {
      knock(wrong, 2, deadline_in(10));
    } catch (const Error& e) {
      stranger = e.what();
    }
  });
  try {
    admit_ranks(door, {.hosts = {"a", "b", "c"}}, 3, deadline_in(1));
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), kPeerFailed);
    missing = e.what();
  }
  others.join();
  close(fd);
  EXPECT_THAT(missing, AllOf(HasSubstr("rank 2 on c did not connect"), HasSubstr("comm.heartbeat_s=0"),
                             Not(HasSubstr("rank 1"))));
  EXPECT_THAT(stranger, HasSubstr("cannot reach rank 0"));
}

}  // namespace
}  // namespace slip
