// Ranges of the host's time, each the name of the work that is queued in it: an op's forward, its backward, the
// optimizer. A profiler sees them: NVTX in a CUDA build (Nsight Systems shows them), bench/profile_step, or an
// observer.
#pragma once

#include <span>
#include <string_view>

#include "core/tensor.h"

namespace ht {

class RangeObserver {
 public:
  virtual ~RangeObserver() = default;
  // `id` is the same in the forward and the backward of one call of an op; null: no op.
  virtual void begin(std::string_view name, std::string_view phase, const void* id) = 0;
  // Tensors that the range which was begun last reads or writes.
  virtual void touches(std::span<const Tensor> tensors) = 0;
  virtual void end() = 0;
};
// Installs an observer (nullptr: none) for this thread and returns the one before it.
RangeObserver* set_range_observer(RangeObserver* observer);

// One range, from construction to destruction; they nest.
class Range {
 public:
  explicit Range(std::string_view name, std::string_view phase = {}, const void* id = nullptr);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  void touches(std::span<const Tensor> tensors) const;

 private:
  RangeObserver* observer_;
};

}  // namespace ht
