#include "models/event_file.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <filesystem>

#include "core/error.h"

namespace ht::models {

namespace {
// Little-endian bytes of a number.
template <class T>
std::string bytes_of(T value) {
  std::string out;
  for (size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i) & 0xFF);
  return out;
}

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out += static_cast<char>(value);
}

// A protocol buffer's fields: the number and wire type (0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes).
std::string field(int number, uint64_t value) { return varint(static_cast<uint64_t>(number) << 3) + varint(value); }
std::string field(int number, double value) {
  return varint(static_cast<uint64_t>(number) << 3 | 1) + bytes_of(std::bit_cast<uint64_t>(value));
}
std::string field(int number, float value) {
  return varint(static_cast<uint64_t>(number) << 3 | 5) + bytes_of(std::bit_cast<uint32_t>(value));
}
std::string field(int number, std::string_view text) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(text.size()) + std::string(text);
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// TFRecord keeps CRCs rotated and offset, since a CRC over data with CRCs in it is weak.
uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u; }
}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      t[i] = i;
      for (int bit = 0; bit < 8; ++bit) t[i] = t[i] >> 1 ^ (t[i] & 1 ? 0x82F63B78u : 0);
    }
    return t;
  }();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
  return ~crc;
}

EventFile::EventFile(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  path_ = str(folder, "/events.out.tfevents.", static_cast<int64_t>(seconds_now()), ".", host, ".", getpid());
  file_.open(path_, std::ios::binary | std::ios::trunc);
  check(file_.is_open(), "tensorboard: cannot write '", path_,
        "'; is it a folder that you may write to? (--tensorboard)");
  write(field(1, seconds_now()) + field(3, std::string_view("brain.Event:2")));  // Event.wall_time, Event.file_version
}

void EventFile::scalar(std::string_view tag, double value, int64_t step) {
  const std::string summary = field(1, std::string_view(field(1, tag) + field(2, static_cast<float>(value))));
  // Event.wall_time, Event.step, Event.summary with one Summary.Value of tag and simple_value.
  write(field(1, seconds_now()) + field(2, static_cast<uint64_t>(step)) + field(5, std::string_view(summary)));
}

void EventFile::write(const std::string& event) {
  const std::string length = bytes_of(static_cast<uint64_t>(event.size()));
  file_ << length << bytes_of(masked_crc(length)) << event << bytes_of(masked_crc(event)) << std::flush;
  check(file_.good(), "tensorboard: a write to '", path_, "' failed; is the disk full? (--tensorboard)");
}

}  // namespace ht::models
