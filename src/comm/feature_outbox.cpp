#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>

#include "comm/mailbox.hpp"
#include "core/log.hpp"

namespace slip {
namespace {

// How long nothing has run here: the host waits long before a GPU has done what is queued. `look` now and
// then.
class IdleTime {
 public:
  explicit IdleTime(const Queue& queue) : queue_(queue) { look(); }
  void look() {
    if (idle_ || !idle(queue_)) return;
    idle_ = true;
    since_ = Clock::now();
  }
  double seconds() {
    look();
    return idle_ ? seconds_since(since_) : 0;
  }

 private:
  const Queue& queue_;
  bool idle_ = false;
  Clock::time_point since_;
};

}  // namespace

FeatureOutbox::FeatureOutbox(const Comm& control, Transport& transport, const FeatureShape& shape, Bf16* ring,
                             int ring_taps, std::vector<int> drafters, double timeout_s, const Queue& queue)
    : control_(control),
      transport_(transport),
      shape_(shape),
      ring_memory_(ring),
      timeout_s_(timeout_s),
      queue_(queue) {
  require(ring_taps >= 1, "FeatureOutbox: at least one tap buffer");
  ring_.resize(static_cast<size_t>(ring_taps));
  drafters_.resize(drafters.size());  // and never again: MPI writes into them
  for (size_t d = 0; d < drafters.size(); ++d) {
    drafters_[d].rank = drafters[d];
    listen(drafters_[d]);
    ++listening_;
  }
}

FeatureOutbox::~FeatureOutbox() {
  for (Drafter& d : drafters_) drop_receive(d.receive);
  if (listening_ == 0 || std::uncaught_exceptions() > 0) return;
  log_error(fmt::format("a target left its mailbox while {} drafters may still ask", listening_));
}

void FeatureOutbox::listen(Drafter& d) {
  check_mpi(
      MPI_Irecv(&d.request, sizeof d.request, MPI_BYTE, d.rank, kRequestTag, control_.get(), &d.receive));
}

void FeatureOutbox::accept_request(Drafter& d, int bytes) {
  const Request r = d.request;
  const std::string from = control_.peers().name(control_.world_rank(d.rank));
  check_request(r, bytes, shape_, from);
  const auto same = [&](const RowRequest& p) {
    return p.drafter == d.rank && (r.type != kWantRow || p.slot == r.slot);
  };
  const auto waits = std::find_if(pending_.begin(), pending_.end(), same);
  if (waits != pending_.end()) {
    fail(fmt::format("{}: {} while its request for {} waits", from,
                     r.type == kDone   ? "is done"
                     : r.type == kCall ? "calls"
                                       : "asks for " + to_string(r.row),
                     to_string(waits->row)));
  }
  if (d.called && r.type != kDone)
    fail(fmt::format("{}: speaks again before the other drafters have called", from));
  if (r.type == kCall) {
    d.called = true;
    return listen(d);
  }
  if (r.type == kDone) {
    d.done = true;
    --listening_;
    return;
  }
  pending_.push_back({r.row, r.tokens, d.rank, r.slot});
  stats_.most_pending = std::max(stats_.most_pending, static_cast<int>(pending_.size()));
  listen(d);
}

bool FeatureOutbox::poll() {
  bool moved = false;
  for (Drafter& d : drafters_) {
    while (!d.done) {
      int done = 0, bytes = 0;
      MPI_Status status;
      check_mpi(MPI_Test(&d.receive, &done, &status));
      if (!done) break;
      check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes));
      accept_request(d, bytes);
      moved = true;
    }
  }
  for (Buffer& b : ring_) {
    if (b.state != Buffer::State::sending || !transport_.test(b.transfer)) continue;
    b.state = Buffer::State::free;
    moved = true;
  }
  time_rows();
  return moved;
}

bool FeatureOutbox::all_called() const {
  return listening_ > 0 && pending_.empty() &&
         std::all_of(drafters_.begin(), drafters_.end(), [](const Drafter& d) { return d.called || d.done; });
}

std::optional<RowRequest> FeatureOutbox::next() {
  IdleTime idle_time(queue_);
  const auto over = [&] {  // nothing to come, nothing under way
    return listening_ == 0 && std::none_of(ring_.begin(), ring_.end(),
                                           [](const Buffer& b) { return b.state == Buffer::State::sending; });
  };
  Wait waiting(control_.peers(), deadline_in(timeout_s_),
               "a request for features (back-pressure: no free slot)", -1);
  waiting.log_once();
  poll();
  while (pending_.empty() && !over() && !all_called()) {
    idle_time.look();
    if (poll()) {
      waiting.alive();
    } else {
      waiting.pause();
    }
  }
  const double waited = idle_time.seconds();
  if (busy_since_) stats_.busy_s += seconds_since(*busy_since_) - ring_wait_of_row_s_ - waited;
  busy_since_.reset();
  ring_wait_of_row_s_ = 0;
  stats_.wait_request_s += waited;
  if (all_called()) {
    for (Drafter& d : drafters_) d.called = false;
    return RowRequest{.call = true};
  }
  if (pending_.empty()) {
    for (auto& h : headers_)
      wait(control_, h->sent, h->drafter, deadline_in(timeout_s_), "to take the last header");
    return std::nullopt;
  }
  const auto lowest =
      std::min_element(pending_.begin(), pending_.end(), [](const RowRequest& a, const RowRequest& b) {
        return a.row != b.row ? a.row < b.row : a.drafter < b.drafter;
      });
  const RowRequest request = *lowest;
  pending_.erase(lowest);
  busy_since_ = Clock::now();
  ++stats_.rows;
  return request;
}

void FeatureOutbox::send_header(const RowRequest& r, int64_t tokens) {
  require(tokens >= 1 && tokens <= shape_.max_tokens, "FeatureOutbox: a row must have 1..max_tokens tokens");
  Header* free = nullptr;
  for (auto& h : headers_) {
    int sent = 0;
    check_mpi(MPI_Test(&h->sent, &sent, MPI_STATUS_IGNORE));  // a null request is a sent one
    if (sent) free = h.get();
    if (sent) break;
  }
  if (free == nullptr) free = headers_.emplace_back(std::make_unique<Header>()).get();
  row_ = r;
  row_tokens_ = tokens;
  row_taps_.clear();
  free->drafter = r.drafter;
  free->message = {.row = r.row,
                   .tokens = tokens,
                   .hidden = shape_.hidden,
                   .taps = shape_.taps,
                   .slot = r.slot,
                   .flags = stop_ ? kStopAsked : 0u,
                   .busy_s = stats_.busy_s,
                   .wait_s = stats_.wait_request_s + stats_.wait_ring_s,
                   .dump_wait_s = dump_wait_s_,
                   .late_s = stats_.late_s,
                   .taps_sent = stats_.taps_sent,
                   .taps_early = stats_.taps_early};
  check_mpi(MPI_Isend(&free->message, sizeof free->message, MPI_BYTE, r.drafter, kHeaderTag, control_.get(),
                      &free->sent));
}

Bf16* FeatureOutbox::acquire_tap() {
  const auto find = [&] {
    return std::find_if(ring_.begin(), ring_.end(),
                        [](const Buffer& b) { return b.state == Buffer::State::free; });
  };
  poll();
  auto found = find();
  if (found == ring_.end()) {
    const auto sending = std::find_if(ring_.begin(), ring_.end(),
                                      [](const Buffer& b) { return b.state == Buffer::State::sending; });
    require(sending != ring_.end(), "FeatureOutbox: all tap buffers are acquired and none was sent");
    Wait waiting(control_.peers(), deadline_in(timeout_s_), "to take features that were sent",
                 control_.world_rank(sending->drafter));
    IdleTime idle_time(queue_);
    for (; found == ring_.end(); found = find()) {
      idle_time.look();
      if (poll()) {
        waiting.alive();
      } else {
        waiting.pause();
      }
    }
    ring_wait_of_row_s_ += idle_time.seconds();
    stats_.wait_ring_s += idle_time.seconds();
  }
  found->state = Buffer::State::acquired;
  return ring_memory_ + (found - ring_.begin()) * shape_.tap_bytes() / 2;
}

void FeatureOutbox::send_tap(const RowRequest& r, int tap, const Bf16* acquired) {
  require(r.row == row_.row && r.drafter == row_.drafter, "FeatureOutbox: a tap of a row without a header");
  require(tap == static_cast<int>(row_taps_.size()) && tap < shape_.taps, "FeatureOutbox: taps go in order");
  const int64_t offset = acquired - ring_memory_, buffer = shape_.max_tokens * shape_.hidden;
  require(offset >= 0 && offset % buffer == 0 && offset / buffer < static_cast<int64_t>(ring_.size()),
          "FeatureOutbox: not a tap buffer of the ring");
  Buffer& b = ring_[static_cast<size_t>(offset / buffer)];
  require(b.state == Buffer::State::acquired, "FeatureOutbox: a tap buffer that was not acquired");
  b.state = Buffer::State::sending;
  b.drafter = r.drafter;
  b.transfer =
      transport_.post_send(r.drafter, acquired, row_tokens_ * shape_.hidden * 2, transport_.fence(queue_));
  row_taps_.push_back(b.transfer);
}

void FeatureOutbox::end_row() { sent_.push_back({std::move(row_taps_), transport_.fence(queue_)}); }

// Taps leave in order, so the last of a row says when all had.
void FeatureOutbox::time_rows() {
  for (; !sent_.empty(); sent_.pop_front()) {
    const Sent& row = sent_.front();
    std::vector<double> after;
    for (const Transfer tap : row.taps) {
      const std::optional<double> s = transport_.seconds_after(tap, row.computed);
      if (!s) return;
      after.push_back(*s);
    }
    if (after.empty()) continue;
    stats_.late_s += std::isnan(after.back()) ? after.back() : std::max(0.0, after.back());
    stats_.taps_sent += static_cast<int64_t>(after.size());
    stats_.taps_early += std::count_if(after.begin(), after.end(), [](double s) { return s < 0; });
  }
}

}  // namespace slip
