// What the mailbox sends beside the features: fixed structs in the byte order of the machine (ranks of one
// job run on one kind of machine), each with a magic number and a version. The checks are pure.
#pragma once
#include <compare>
#include <cstdint>
#include <string>

namespace slip {

// Replay: what was decoded, run through the training forward.
enum RowKind : int32_t { kTrainRow = 0, kEvalRow = 1, kReplayRow = 2 };

// A row of features. The order is that in which targets serve: by epoch, then training before evaluation.
struct RowId {
  int32_t kind = kTrainRow;
  int32_t reserved = 0;
  int64_t epoch = 0, index = 0;
  friend bool operator==(const RowId&, const RowId&) = default;
  friend std::strong_ordering operator<=>(const RowId& a, const RowId& b) {
    if (const auto c = a.epoch <=> b.epoch; c != 0) return c;
    if (const auto c = a.kind <=> b.kind; c != 0) return c;
    return a.index <=> b.index;
  }
};
std::string to_string(const RowId&);  // "train row 17 of epoch 2"

struct FeatureShape {
  int taps = 0;
  int64_t max_tokens = 0, hidden = 0;
  int64_t tap_bytes() const { return max_tokens * hidden * 2; }  // bf16
  int64_t slot_bytes() const { return taps * tap_bytes(); }      // [taps][tokens of the row][hidden]
};

inline constexpr uint32_t kMailboxMagic = 0x50494c53;  // "SLIP"
inline constexpr uint32_t kMailboxVersion = 3;
inline constexpr int32_t kWireBf16 = 1;
inline constexpr uint32_t kStopAsked = 1;  // bit of FeatureHeader::flags
inline constexpr int kRequestTag = 1, kHeaderTag = 2;

// Call: the target shall leave its mailbox for a while and do what the drafters then ask for elsewhere.
enum RequestType : int32_t { kWantRow = 0, kDone = 1, kCall = 2 };

struct Request {  // drafter -> target
  uint32_t magic = kMailboxMagic, version = kMailboxVersion;
  RowId row;
  int64_t tokens = 0;
  int32_t slot = -1;
  int32_t type = kWantRow;
};
static_assert(sizeof(Request) == 48);

struct FeatureHeader {  // target -> drafter, before the taps
  uint32_t magic = kMailboxMagic, version = kMailboxVersion;
  RowId row;
  int64_t tokens = 0, hidden = 0;
  int32_t taps = 0, dtype = kWireBf16, slot = -1;
  uint32_t flags = 0;
  // Of the target since its start: at work, held up by drafters, held up by the disk of its dump.
  double busy_s = 0, wait_s = 0, dump_wait_s = 0;
  // Of the rows whose taps have all left: how much later than its forward the last of them had, summed over
  // the rows (NaN: not measured); taps, and those that had left before the forward ended.
  double late_s = 0;
  int64_t taps_sent = 0, taps_early = 0;
};
static_assert(sizeof(FeatureHeader) == 112);

// Each fails with one line that begins with `from` ("rank 1 on node07") and names the row and both values.
// `bytes`: of the message that was received.
void check_envelope(uint32_t magic, uint32_t version, int64_t bytes, int64_t expected_bytes,
                    const std::string& from);
void check_request(const Request&, int64_t bytes, const FeatureShape&, const std::string& from);
// `asked`: the request that the slot of the header stands for.
void check_header(const FeatureHeader&, const Request& asked, const FeatureShape&, const std::string& from);

}  // namespace slip
