// A step of work that is the same every time: run as it is at first, then recorded into one CUDA graph and replayed, so
// that the host's launches cost nothing. On the CPU it always runs as it is.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace ht {

class CapturedStep {
 public:
  // Gets copies of the inputs that stay where they are. For the same shapes it must queue the same work each time, and
  // it may not read a value back (item(), to(cpu)). Only work on the device is repeated, so results leave it by a write
  // to a tensor made before (loss_of_step.copy_(loss.value())). Gradients stay where they are, and each replay writes
  // them again.
  using Step = std::function<void(std::span<const Tensor> inputs)>;

  // `warm_up`: calls before the recording, at least 1, so that every plan is found and every buffer made; kNever: all
  // run as they are. Inputs of other shapes or dtypes warm up and record again; earlier recordings are kept.
  static constexpr int kWarmUp = 3, kNever = std::numeric_limits<int>::max();
  CapturedStep(Device device, Step step, int warm_up = kWarmUp);
  ~CapturedStep();
  CapturedStep(const CapturedStep&) = delete;
  CapturedStep& operator=(const CapturedStep&) = delete;

  // One step. Throws Error, and stays usable, when the step cannot be recorded.
  void operator()(std::span<const Tensor> inputs);
  void operator()(std::initializer_list<Tensor> inputs) { (*this)(std::span(inputs.begin(), inputs.size())); }

  // Whether the last call was a replay.
  bool replayed() const { return replayed_; }
  // Forgets all recordings: after a change that the step's own work cannot see (a learning rate that it does not read).
  void reset();

 private:
  struct Recording;
  Recording& recording_of(std::span<const Tensor> inputs);
  void record(Recording& r);
  void replay(Recording& r);

  Device device_;
  Step step_;
  int warm_up_;
  bool replayed_ = false;
  std::vector<std::unique_ptr<Recording>> recordings_;
  int pool_ = 0;  // where what the recordings allocate lies
};

// Host-side bookkeeping that belongs to a step, such as a tensor's count of writes: while this thread records, adds
// `again` to what every replay does on the host right after its launch; otherwise nothing. The generator then stands
// where the step began. `again` may read what the replay writes, and wait for it.
void on_replay(std::function<void()> again);
bool is_recording();

}  // namespace ht
