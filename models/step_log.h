// What steps tell of themselves, kept in the device's memory until somebody looks: a step writes it without waiting,
// also as a part of a CUDA graph, whose replays write over all that the step itself makes.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "optim/optimizer.h"

namespace ht::models {

struct StepEntry {
  double loss = 0;  // mean over the images
  double lr = 0;    // the rate of the step
  int64_t correct = 0, images = 0;
};

class StepLog {
 public:
  static constexpr int64_t kSlots = 256;

  explicit StepLog(Device device);
  // Queues one kernel that keeps the loss (one element), how many rows of logits [n, classes] have their largest value
  // at the label, and the rate unless that is empty. No host read.
  void record(const Tensor& loss, const Tensor& logits, const Tensor& labels, const optim::Rate& rate = {});
  // The entries since the last read, the oldest first. Waits for the device. Throws Error when there were more than
  // kSlots, of which the first are lost.
  std::vector<StepEntry> read();
  // The same from a copy on the CPU of where they are kept, for those who do not wait; older than what was read: none.
  const Tensor& memory() const { return ring_; }
  std::vector<StepEntry> read(const Tensor& copy);

 private:
  Tensor ring_;       // StepRing as bytes
  int64_t read_ = 0;  // entries that were read
};

// How many rows of logits [n, classes] have their largest value at the label. Waits for the device.
int64_t count_correct(const Tensor& logits, const Tensor& labels);

// Entry i lies in slot i % kSlots.
struct StepRing {
  int64_t count = 0;
  StepEntry slots[StepLog::kSlots];
};

// Has the row its first largest value, which is finite, at the label?
template <class T>
HT_HD bool is_correct(const T* row, int64_t classes, int64_t label) {
  int64_t best = 0;
  float largest = convert_element<float>(row[0]);
  for (int64_t j = 1; j < classes; ++j) {
    const float value = convert_element<float>(row[j]);
    if (largest < value) largest = value, best = j;
  }
  return best == label && finite_bits(largest);
}

// The CUDA side (models/step_log.cu). `labels` are i32 or i64.
void record_step_cuda(const Tensor& ring, const Tensor& loss, const Tensor& logits, const Tensor& labels,
                      const optim::Rate& rate);

}  // namespace ht::models
