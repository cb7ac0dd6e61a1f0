// TensorBoard's event files: scalars by name and step. Records are TFRecords of the protocol buffer Event
// (github.com/tensorflow/tensorboard: tensorboard/compat/proto/event.proto and summary.proto), encoded here by hand.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace ht::models {

// CRC-32C (Castagnoli): polynomial 0x1EDC6F41, reflected.
uint32_t crc32c(std::string_view bytes);

class EventFile {
 public:
  // Makes the folder and a new file "events.out.tfevents.<seconds>.<host>.<process>" in it. Throws Error when it
  // cannot.
  explicit EventFile(const std::string& folder);
  // A record for the scalar, written out at once. Throws Error when the disk is full.
  void scalar(std::string_view tag, double value, int64_t step);

 private:
  void write(const std::string& event);
  std::string path_;
  std::ofstream file_;
};

}  // namespace ht::models
