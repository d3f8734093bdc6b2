#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "comm/mailbox.hpp"
#include "core/log.hpp"

namespace slip {

FeatureInbox::FeatureInbox(const Comm& control, Transport& transport, const FeatureShape& shape, Bf16* slots,
                           int slot_count, std::vector<int> targets, double timeout_s, const Queue& queue)
    : control_(control),
      transport_(transport),
      shape_(shape),
      slots_(slots),
      timeout_s_(timeout_s),
      queue_(queue),
      credits_(slot_count) {
  require(shape.taps > 0 && shape.max_tokens > 0 && shape.hidden > 0, "FeatureInbox: empty shape");
  state_.resize(static_cast<size_t>(slot_count));
  for (Slot& s : state_) s.taps.resize(static_cast<size_t>(shape.taps));
  for (const int rank : targets) targets_.emplace_back().rank = rank;
}

FeatureInbox::~FeatureInbox() {
  for (Target& t : targets_) drop_receive(t.receive);
  if (finished_ || std::uncaught_exceptions() > 0) return;
  log_error("a drafter left its mailbox without finish(): its targets will wait for it");
}

bool FeatureInbox::try_request(const RowId& row, int target, int64_t tokens) {
  require(!finished_, "FeatureInbox: a request after finish()");
  require(tokens >= 1 && tokens <= shape_.max_tokens, "FeatureInbox: a row must have 1..max_tokens tokens");
  const auto found =
      std::find_if(targets_.begin(), targets_.end(), [&](const Target& t) { return t.rank == target; });
  require(found != targets_.end(), "FeatureInbox: not a target rank");
  poll();
  const std::optional<int> slot = credits_.take();
  if (!slot) return false;
  Slot& s = state_[static_cast<size_t>(*slot)];
  s.state = State::requested;
  s.target = static_cast<int>(found - targets_.begin());
  s.request = {.row = row, .tokens = tokens, .slot = *slot};
  check_mpi(MPI_Isend(&s.request, sizeof s.request, MPI_BYTE, target, kRequestTag, control_.get(), &s.sent));
  if (found->outstanding++ == 0) {
    found->heard = Clock::now();
    check_mpi(MPI_Irecv(&found->header, sizeof found->header, MPI_BYTE, target, kHeaderTag, control_.get(),
                        &found->receive));
  }
  return true;
}

void FeatureInbox::poll() {
  for (size_t t = 0; t < targets_.size(); ++t) {
    while (targets_[t].receive != MPI_REQUEST_NULL) {
      int done = 0, bytes = 0;
      MPI_Status status;
      check_mpi(MPI_Test(&targets_[t].receive, &done, &status));
      if (!done) break;
      check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes));
      accept_header(t, bytes);
    }
  }
  for (Slot& s : state_) {
    if (s.state == State::receiving && accept_taps(s)) s.state = State::ready;
  }
}

void FeatureInbox::accept_header(size_t target, int bytes) {
  Target& t = targets_[target];
  const FeatureHeader h = t.header;
  const std::string from = control_.peers().name(control_.world_rank(t.rank));
  check_envelope(h.magic, h.version, bytes, sizeof h, from);
  const bool awaited = h.slot >= 0 && h.slot < credits_.slots() &&
                       state_[static_cast<size_t>(h.slot)].state == State::requested &&
                       state_[static_cast<size_t>(h.slot)].target == static_cast<int>(target);
  if (!awaited) {
    fail(
        fmt::format("{}: sends {} into slot {}, which does not wait for it", from, to_string(h.row), h.slot));
  }
  Slot& s = state_[static_cast<size_t>(h.slot)];
  check_header(h, s.request, shape_, from);
  s.header = h;
  s.state = State::receiving;
  t.heard = Clock::now();
  for (int k = 0; k < shape_.taps; ++k) {
    Bf16* tap = memory(static_cast<size_t>(h.slot)) + k * h.tokens * shape_.hidden;
    s.taps[static_cast<size_t>(k)] =
        transport_.post_recv(t.rank, tap, h.tokens * shape_.hidden * 2, s.readers);
  }
  if (--t.outstanding > 0) {
    check_mpi(
        MPI_Irecv(&t.header, sizeof t.header, MPI_BYTE, t.rank, kHeaderTag, control_.get(), &t.receive));
  }
}

bool FeatureInbox::accept_taps(Slot& s) {
  int sent = 0;
  check_mpi(MPI_Test(&s.sent, &sent, MPI_STATUS_IGNORE));
  if (!sent) return false;
  for (Transfer& tap : s.taps) {
    if (tap.id < 0) continue;
    if (!transport_.test(tap)) return false;
    tap.id = -1;
    targets_[static_cast<size_t>(s.target)].heard = Clock::now();
  }
  return true;
}

FeatureInbox::Slot& FeatureInbox::slot_of(const RowId& row) {
  for (Slot& s : state_) {
    const bool under_way =
        s.state == State::requested || s.state == State::receiving || s.state == State::ready;
    if (under_way && s.request.row == row) return s;
  }
  fail(fmt::format("{} was not requested", to_string(row)));
}

std::string FeatureInbox::source(const Slot& s) const { return "features of " + to_string(s.request.row); }

void FeatureInbox::wait_until_ready(Slot& s) {
  poll();
  if (s.state == State::ready) return;
  Target& t = targets_[static_cast<size_t>(s.target)];
  const std::string what = source(s);
  Wait waiting(control_.peers(), deadline_in(timeout_s_), what, control_.world_rank(t.rank));
  for (Clock::time_point heard = t.heard; s.state != State::ready; poll()) {
    if (t.heard != heard) waiting.alive();
    heard = t.heard;
    waiting.pause();
  }
}

FeatureSlot FeatureInbox::receive(const RowId& row) {
  const Clock::time_point start = Clock::now();
  Slot& s = slot_of(row);
  poll();
  const auto ready =
      std::count_if(state_.begin(), state_.end(), [](const Slot& x) { return x.state == State::ready; });
  const bool this_too = s.state == State::ready;
  wait_until_ready(s);
  s.state = State::lent;
  return {.slot = s.request.slot,
          .row = row,
          .data = memory(static_cast<size_t>(s.request.slot)),
          .tokens = s.header.tokens,
          .waited_s = seconds_since(start),
          .flags = s.header.flags,
          .target_busy_s = s.header.busy_s,
          .target_wait_s = s.header.wait_s,
          .dump_wait_s = s.header.dump_wait_s,
          .target_late_s = s.header.late_s,
          .taps_sent = s.header.taps_sent,
          .taps_early = s.header.taps_early,
          .ready = static_cast<int>(ready) - this_too};
}

void FeatureInbox::release(int slot) {
  credits_.give_back(slot);
  Slot& s = state_[static_cast<size_t>(slot)];
  require(s.state == State::lent, "FeatureInbox: released a slot that was not received");
  s.state = State::free;
  s.readers = transport_.fence(queue_);
}

void FeatureInbox::tell_targets(int32_t type, const char* what) {
  const Request message{.type = type};
  for (const Target& t : targets_) {
    MPI_Request sent = MPI_REQUEST_NULL;
    check_mpi(MPI_Isend(&message, sizeof message, MPI_BYTE, t.rank, kRequestTag, control_.get(), &sent));
    wait(control_, sent, t.rank, deadline_in(timeout_s_), what);
  }
}

void FeatureInbox::call() {
  require(!finished_, "FeatureInbox: a call after finish()");
  for (const Slot& s : state_)
    require(s.state == State::free, "FeatureInbox: a call while a row is under way or in use");
  tell_targets(kCall, "to hear a call");
}

void FeatureInbox::finish() {
  require(!finished_, "FeatureInbox: finish() twice");
  for (Slot& s : state_) {
    require(s.state != State::lent, "FeatureInbox: finish() with a slot in use");
    if (s.state == State::free) continue;
    wait_until_ready(s);
    s.state = State::free;
    credits_.give_back(s.request.slot);
  }
  tell_targets(kDone, "to take leave");
  finished_ = true;
}

}  // namespace slip
