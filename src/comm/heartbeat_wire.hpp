// What heartbeats say to each other: messages of one size, between processes of one program on like machines.
#pragma once
#include <cstdint>
#include <type_traits>

namespace slip {

enum class Word : int32_t {
  hello = 1,  // of a rank to rank 0, and rank 0's answer; step is the cookie
  beat,       // rank is at this step, in this phase
  bye,        // the sender leaves in good order
  failed,     // rank ends with an error that it has said itself
  gone,       // rank is gone; how tells why
};

struct HeartbeatMessage {
  uint32_t magic = kMagic;
  Word word = Word::beat;
  int32_t rank = 0, unused = 0;
  int64_t step = 0;
  char phase[16] = {}, how[56] = {};  // texts end with a zero

  static constexpr uint32_t kMagic = 0x54414542;
};
static_assert(sizeof(HeartbeatMessage) == 96 && std::is_trivially_copyable_v<HeartbeatMessage>);

}  // namespace slip
