#include "comm/mailbox_wire.hpp"

#include <fmt/format.h>

#include "core/check.hpp"

namespace slip {

std::string to_string(const RowId& id) {
  const char* kind = id.kind == kTrainRow ? "train" : id.kind == kEvalRow ? "eval" : "replay";
  return fmt::format("{} row {} of epoch {}", kind, id.index, id.epoch);
}

void check_envelope(uint32_t magic, uint32_t version, int64_t bytes, int64_t expected_bytes,
                    const std::string& from) {
  if (bytes != expected_bytes) {
    fail(fmt::format("{}: a mailbox message of {} bytes, {} expected", from, bytes, expected_bytes));
  }
  if (magic != kMailboxMagic) {
    fail(fmt::format("{}: not a mailbox message (starts with {:#010x}, {:#010x} expected)", from, magic,
                     kMailboxMagic));
  }
  if (version != kMailboxVersion) {
    fail(fmt::format(
        "{}: speaks version {} of the mailbox, this rank speaks {}: all ranks must run the same build", from,
        version, kMailboxVersion));
  }
}

void check_request(const Request& r, int64_t bytes, const FeatureShape& shape, const std::string& from) {
  check_envelope(r.magic, r.version, bytes, sizeof(Request), from);
  if (r.type == kDone || r.type == kCall) return;
  if (r.type != kWantRow) fail(fmt::format("{}: a request of unknown type {}", from, r.type));
  if (r.row.kind < kTrainRow || r.row.kind > kReplayRow) {
    fail(fmt::format("{}: a request for a row of unknown kind {}", from, r.row.kind));
  }
  if (r.slot < 0) fail(fmt::format("{}: asks for {} into slot {}", from, to_string(r.row), r.slot));
  if (r.tokens < 1 || r.tokens > shape.max_tokens) {
    fail(fmt::format("{}: asks for {} with {} tokens, data.row_tokens is {}", from, to_string(r.row),
                     r.tokens, shape.max_tokens));
  }
}

void check_header(const FeatureHeader& h, const Request& asked, const FeatureShape& shape,
                  const std::string& from) {
  const auto differs = [&](const char* what, int64_t found, int64_t expected, const char* remedy = "") {
    if (found == expected) return;
    fail(fmt::format("{}: features of {} rejected: {} {} vs {}{}", from, to_string(asked.row), what, expected,
                     found, remedy));
  };
  if (h.row != asked.row) {
    fail(fmt::format("{}: sends {} into slot {}, which waits for {}", from, to_string(h.row), h.slot,
                     to_string(asked.row)));
  }
  differs("tokens", h.tokens, asked.tokens, ": do both ranks see the same token shards?");
  differs("taps", h.taps, shape.taps);
  differs("hidden", h.hidden, shape.hidden);
  differs("element type", h.dtype, kWireBf16);
}

}  // namespace slip
