#include "io/event_file.hpp"

#include <gtest/gtest.h>

namespace slip {
namespace {

// RFC 3720, B.4: CRC32C of 32 zeros is 8a9136aa, of "123456789" (the usual check) e3069283.
TEST(EventFile, MaskedCrc32c) {
  const auto masked = [](uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; };
  EXPECT_EQ(masked_crc32c(std::string(32, '\0')), masked(0x8a9136aau));
  EXPECT_EQ(masked_crc32c("123456789"), masked(0xe3069283u));
  EXPECT_EQ(masked_crc32c(""), masked(0));
}

// By hand from the wire format: field << 3 | type, 1 for eight bytes, 0 varint, 2 bytes, 5 four bytes.
TEST(EventFile, EventsByHand) {
  using namespace std::string_literals;
  const std::string one = "\x09\0\0\0\0\0\0\xf0\x3f"s;  // wall time 1
  EXPECT_EQ(version_event(1), one + "\x1a\x0d" + "brain.Event:2");
  EXPECT_EQ(start_event(1, 5), one + "\x10\x05\x3a\x02\x08\x01");
  EXPECT_EQ(scalar_event(1, 300, {{"ab", 2}}),
            one + "\x10\xac\x02\x2a\x0b\x0a\x09\x0a\x02" + "ab" + "\x15\0\0\0\x40"s);
  EXPECT_EQ(scalar_event(1, 0, {}), one + "\x10\0\x2a\0"s);
}

TEST(EventFile, Record) {
  const std::string event(300, 'x'), record = event_record(event);
  ASSERT_EQ(record.size(), 8 + 4 + 300 + 4);
  EXPECT_EQ(record.substr(0, 8), std::string("\x2c\x01\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 300), event);
}

}  // namespace
}  // namespace slip
