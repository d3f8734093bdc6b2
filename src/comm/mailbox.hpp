// Features from target ranks to drafter ranks, with back-pressure. Drafters pull:
//  * A drafter rank owns `slots` slots; a slot is the credit. For each row that it will need it takes a slot
//  and sends
//    a request (row, tokens, slot) to the target rank that serves the row.
//  * A target rank takes the lowest pending request, runs the row, and sends a header and then one message a
//  tap, each
//    as soon as it is complete. No pending request: it waits, and says so in the log after 5 s.
//  * From the header to the last tap the slot belongs to the transport, then to the drafter until `release`.
//  * The drafter checks the header before it posts a receive for the first byte.
//  * A tap buffer of the target's ring belongs to the target from `acquire_tap` to `send_tap`, then to the
//  transport.
//  * A drafter with nothing under way may call its targets: each leaves `next` once all its drafters called.
//  * A drafter that needs nothing more receives what it has requested, drops it, and says Done; a target ends
//  when
//    all drafters have. Memory: slots on the drafter, the ring on the target, whatever the speeds of the
//    ranks.
// A rank makes progress inside these calls only; a drafter calls `poll` now and then during a long step.
#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/credits.hpp"
#include "comm/mailbox_wire.hpp"
#include "comm/mpi.hpp"
#include "comm/transport.hpp"
#include "core/bf16.hpp"

namespace slip {

struct FeatureSlot {
  int slot = -1;
  RowId row;
  const Bf16* data = nullptr;                   // [taps][tokens][hidden]
  int64_t tokens = 0;                           // the row's own
  double waited_s = 0;                          // inside `receive`
  uint32_t flags = 0;                           // kStopAsked: somebody asked this target to stop
  double target_busy_s = 0, target_wait_s = 0;  // of that target, since its start
  double dump_wait_s = 0;
  double target_late_s = 0;  // and the next two: FeatureHeader
  int64_t taps_sent = 0, taps_early = 0;
  int ready = 0;  // rows that lay ready, this one not counted, when it was asked for
};

class FeatureInbox {
 public:
  // `slots`: slot_count * shape.slot_bytes() bytes that outlive the inbox. `control` carries requests and
  // headers; the mailbox alone uses its tags. `queue`: what reads the slots.
  FeatureInbox(const Comm& control, Transport&, const FeatureShape&, Bf16* slots, int slot_count,
               std::vector<int> targets, double timeout_s, const Queue& queue = {});
  ~FeatureInbox();
  FeatureInbox(const FeatureInbox&) = delete;
  FeatureInbox& operator=(const FeatureInbox&) = delete;

  bool try_request(const RowId&, int target, int64_t tokens);  // false: no free slot
  FeatureSlot receive(const RowId&);  // waits for that row; it must have been requested
  void release(int slot);
  void poll();    // accepts what has come
  void call();    // asks every target to leave its rows; nothing may be under way
  void finish();  // receives and drops what is under way, then tells every target Done
  int free_slots() const { return credits_.free(); }

 private:
  enum class State { free, requested, receiving, ready, lent };
  struct Slot {
    State state = State::free;
    Request request{};
    MPI_Request sent = MPI_REQUEST_NULL;
    int target = -1;  // index into targets_
    FeatureHeader header{};
    std::vector<Transfer> taps;
    Fence readers;  // what still reads the slot after `release`
  };
  struct Target {
    int rank = -1;
    int outstanding = 0;  // requests without a header; a receive is posted while there are any
    FeatureHeader header{};
    MPI_Request receive = MPI_REQUEST_NULL;
    Clock::time_point heard = Clock::now();
  };
  void accept_header(size_t target, int bytes);
  void tell_targets(int32_t type, const char* what);
  bool accept_taps(Slot&);
  Slot& slot_of(const RowId&);
  void wait_until_ready(Slot&);
  Bf16* memory(size_t slot) const { return slots_ + static_cast<int64_t>(slot) * shape_.slot_bytes() / 2; }
  std::string source(const Slot&) const;  // "features of train row 3 of epoch 0 from rank 1 on node07"

  const Comm& control_;
  Transport& transport_;
  FeatureShape shape_;
  Bf16* slots_;
  double timeout_s_;
  Queue queue_;
  Credits credits_;
  std::vector<Slot> state_;
  std::vector<Target> targets_;
  bool finished_ = false;
};

struct RowRequest {
  RowId row;
  int64_t tokens = 0;
  int drafter = -1;   // rank in the control communicator
  int slot = -1;      // of that drafter
  bool call = false;  // no row: all drafters have called
};

struct OutboxStats {
  int64_t rows = 0;
  double busy_s = 0;  // between `next` and `next`, waits for the ring not counted
  // While nothing ran on the queue:
  double wait_request_s = 0;  // for a request: no drafter had a free slot
  double wait_ring_s = 0;     // for a tap buffer: drafters did not take what was sent
  int most_pending = 0;       // requests at once
  // As FeatureHeader says.
  double late_s = 0;
  int64_t taps_sent = 0, taps_early = 0;
};

class FeatureOutbox {
 public:
  // `ring`: ring_taps * shape.tap_bytes() bytes that outlive the outbox. With taps * slots_per_drafter *
  // drafters of them a slow drafter never holds up the others; 2 * taps is the least that keeps a target
  // busy.
  FeatureOutbox(const Comm& control, Transport&, const FeatureShape&, Bf16* ring, int ring_taps,
                std::vector<int> drafters, double timeout_s, const Queue& queue = {});
  ~FeatureOutbox();
  FeatureOutbox(const FeatureOutbox&) = delete;
  FeatureOutbox& operator=(const FeatureOutbox&) = delete;

  // The lowest pending row, or the call of all drafters; waits while there is neither. nullopt: all drafters
  // are done and everything has left. Its time limit runs from the last sign of life of any drafter.
  std::optional<RowRequest> next();
  void set_dump_wait(double seconds) { dump_wait_s_ = seconds; }  // what the next headers say
  void ask_stop() { stop_ = true; }                               // from now on every header says so
  void send_header(const RowRequest&, int64_t tokens);  // the target's own count: the drafter compares
  Bf16* acquire_tap();  // (max_tokens, hidden), free to be written; waits while the whole ring is under way
  void send_tap(const RowRequest&, int tap,
                const Bf16* acquired);  // after the header, in the order 0, 1, ...
  void end_row();                       // all that computes the row is queued
  const OutboxStats& stats() const { return stats_; }

 private:
  struct Drafter {
    int rank = -1;
    Request request{};
    MPI_Request receive = MPI_REQUEST_NULL;
    bool done = false, called = false;
  };
  struct Buffer {
    enum class State { free, acquired, sending } state = State::free;
    Transfer transfer;
    int drafter = -1;
  };
  struct Header {
    FeatureHeader message{};
    int drafter = -1;
    MPI_Request sent = MPI_REQUEST_NULL;
  };
  struct Sent {  // a row whose taps may still be under way
    std::vector<Transfer> taps;
    Fence computed;
  };
  bool poll();  // true: something came or left
  void time_rows();
  void accept_request(Drafter&, int bytes);
  void listen(Drafter&);
  bool all_called() const;  // and nothing else is to be done

  const Comm& control_;
  Transport& transport_;
  FeatureShape shape_;
  Bf16* ring_memory_;
  double timeout_s_;
  Queue queue_;
  std::vector<Drafter> drafters_;
  std::vector<RowRequest> pending_;
  std::vector<Buffer> ring_;
  std::vector<std::unique_ptr<Header>> headers_;  // reused when sent; MPI reads them meanwhile
  int listening_ = 0;                             // drafters that are not done
  bool stop_ = false;
  double dump_wait_s_ = 0;
  OutboxStats stats_;
  RowRequest row_;  // the one whose taps are being sent
  int64_t row_tokens_ = 0;
  std::vector<Transfer> row_taps_;
  std::deque<Sent> sent_;  // rows whose time is not known yet
  std::optional<Clock::time_point> busy_since_;
  double ring_wait_of_row_s_ = 0;
};

}  // namespace slip
