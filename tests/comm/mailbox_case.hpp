// Target and drafter loops with made-up features, for the mailbox tests: ranks 0..drafters-1 are drafters.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "comm/mailbox.hpp"
#include "comm/mpi_transport.hpp"
#include "comm/session.hpp"
#include "core/random.hpp"

namespace slip::testing {

struct MailboxCase {
  int targets = 1, drafters = 1, slots = 2, ring_rows = 2;
  FeatureShape shape{.taps = 3, .max_tokens = 37, .hidden = 24};
  double timeout_s = 60;
  std::function<void(const RowId&)> at_target, at_drafter;  // delays

  bool takes_part() const { return world().rank() < targets + drafters; }
  bool drafts() const { return world().rank() < drafters; }
  int target_of(int64_t index) const { return drafters + static_cast<int>(index % targets); }
};

inline int64_t row_tokens(const MailboxCase& c, const RowId& id) {
  const auto row = static_cast<uint64_t>(id.index);
  return 1 + static_cast<int64_t>(random_u64(11, static_cast<uint64_t>(id.epoch), row) %
                                  static_cast<uint64_t>(c.shape.max_tokens));
}
inline Bf16 element(const RowId& id, int tap, int64_t i) {
  const uint64_t place = static_cast<uint64_t>(tap) << 32 | static_cast<uint64_t>(i);
  const uint64_t row = static_cast<uint64_t>(id.kind) << 60 | static_cast<uint64_t>(id.epoch) << 32 |
                       static_cast<uint64_t>(id.index);
  return {static_cast<uint16_t>((row * 0x9E3779B97F4A7C15u ^ place * 0xC2B2AE3D27D4EB4Fu) >> 40)};
}

constexpr uint16_t kPoison = 0x7fc1;

// Memory with a guard behind it, all poison; `intact` says whether the guard still is.
struct Guarded {
  std::vector<Bf16> v;
  size_t inner;
  explicit Guarded(int64_t bytes)
      : v(static_cast<size_t>(bytes / 2) + 64, Bf16{kPoison}), inner(static_cast<size_t>(bytes / 2)) {}
  bool intact() const {
    return std::all_of(v.begin() + static_cast<long>(inner), v.end(),
                       [](Bf16 b) { return b.bits == kPoison; });
  }
};

// Serves until all drafters are done.
inline OutboxStats run_target(const MailboxCase& c, const Comm& control, Transport& transport) {
  Guarded ring(c.ring_rows * c.shape.slot_bytes());
  std::vector<int> drafters;
  for (int d = 0; d < c.drafters; ++d) drafters.push_back(d);
  FeatureOutbox outbox(control, transport, c.shape, ring.v.data(), c.ring_rows * c.shape.taps, drafters,
                       c.timeout_s);
  while (const auto request = outbox.next()) {
    if (request->call) {  // what the drafters wait for elsewhere
      for (int d = 0; d < c.drafters; ++d) send(control, d, 5, outbox.stats().rows, soon(), "the answer");
      continue;
    }
    const int64_t tokens = row_tokens(c, request->row);
    EXPECT_EQ(tokens, request->tokens);
    if (c.at_target) c.at_target(request->row);
    outbox.send_header(*request, tokens);
    for (int tap = 0; tap < c.shape.taps; ++tap) {
      Bf16* buffer = outbox.acquire_tap();
      for (int64_t i = 0; i < tokens * c.shape.hidden; ++i) buffer[i] = element(request->row, tap, i);
      outbox.send_tap(*request, tap, buffer);
    }
  }
  EXPECT_TRUE(ring.intact());
  EXPECT_LE(outbox.stats().most_pending, c.drafters * c.slots);
  EXPECT_EQ(transport.in_flight(), 0);
  return outbox.stats();
}

// A drafter's inbox over guarded slots, requesting ahead in the order of `rows`.
struct TestDrafter {
  const MailboxCase& c;
  std::vector<RowId> rows;
  Guarded memory;
  FeatureInbox inbox;
  size_t requested = 0, received = 0;

  static std::vector<int> targets(const MailboxCase& c) {
    std::vector<int> t;
    for (int i = 0; i < c.targets; ++i) t.push_back(c.drafters + i);
    return t;
  }
  TestDrafter(const MailboxCase& c, const Comm& control, Transport& transport, std::vector<RowId> rows)
      : c(c),
        rows(std::move(rows)),
        memory(c.slots * c.shape.slot_bytes()),
        inbox(control, transport, c.shape, memory.v.data(), c.slots, targets(c), c.timeout_s) {}

  void request_ahead() {
    while (requested < rows.size()) {
      const RowId& id = rows[requested];
      if (!inbox.try_request(id, c.target_of(id.index), row_tokens(c, id))) break;
      ++requested;
    }
  }
  // The next row: compared with what it must be, poisoned, given back.
  FeatureSlot take() {
    request_ahead();
    const RowId id = rows[received++];
    const FeatureSlot slot = inbox.receive(id);
    const int64_t tokens = row_tokens(c, id);
    EXPECT_EQ(slot.row, id);
    EXPECT_EQ(slot.tokens, tokens);
    if (c.at_drafter) c.at_drafter(id);
    int64_t wrong = 0;
    for (int tap = 0; tap < c.shape.taps; ++tap) {
      for (int64_t i = 0; i < tokens * c.shape.hidden; ++i) {
        wrong += slot.data[tap * tokens * c.shape.hidden + i] == element(id, tap, i) ? 0 : 1;
      }
    }
    EXPECT_EQ(wrong, 0) << to_string(id);
    Bf16* memory = const_cast<Bf16*>(slot.data);
    std::fill(memory, memory + c.shape.slot_bytes() / 2, Bf16{kPoison});
    inbox.release(slot.slot);
    request_ahead();
    return slot;
  }
};

inline void sleep_ms(int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace slip::testing
