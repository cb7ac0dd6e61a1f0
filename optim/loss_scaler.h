// The host's side of the loss scaler: it launches what scaler_state.h computes and keeps the order of the calls.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "autograd/var.h"
#include "optim/scaler_state.h"

namespace ht::optim {

// What a step knows of the loss scaler.
struct Scaling {
  Tensor states;  // ScalerState [count] as bytes; undefined: there is no scaler
  int count = 0;
  bool scaled = false;  // gradients hold the scale of the only loss
  uint64_t moving = 0;  // bit i: scale i is to move with this step
  ScalerOptions options;
  // On CUDA, where gradients are unscaled by the step itself. The loss has not been looked at yet; `first`: it is that
  // of the first backward since a step. Undefined: all is noted. The seed follows the scale.
  Tensor loss, seed;
  bool first = false;

  ScalerState* on_device() const { return states ? reinterpret_cast<ScalerState*>(states.data<uint8_t>()) : nullptr; }
};

// The loss scales of one Amp, a state each, on the device. A round: backwards of one or more losses, then a step of
// each optimizer.
class LossScaler {
 public:
  // With `delayed` (one loss, one optimizer) gradient slots hold scaled sums until the step unscales them on the fly.
  // Otherwise unscale() follows each backward.
  LossScaler(const ScalerOptions& options, int count, bool delayed, Device device);

  const ScalerOptions& options() const { return options_; }
  int count() const { return count_; }
  bool delayed() const { return delayed_; }
  bool scaled() const { return scaled_; }  // slots hold scaled gradients now
  Device device() const { return states_.device(); }
  const Tensor& seed() const { return seed_; }      // of every backward; undefined: made by each
  const Tensor& states() const { return states_; }  // ScalerState [count] as bytes
  ScalerState* states_cpu() const { return reinterpret_cast<ScalerState*>(states_.data<uint8_t>()); }

  // The seed of a backward of loss `id`: its scale, a scalar f32. Notes a loss that is not finite, at once or, on CUDA
  // and `delayed`, where that would be a kernel of its own, with the next backward or step.
  Tensor begin_backward(const Tensor& loss, int id);
  // Replaces the slots of `params`, which hold gradients times scale `id`, by FP32 (f64 for f64) ones: `before`, where
  // it is defined, plus the unscaled gradient. Notes gradients that are not finite.
  void unscale(int id, std::span<const Var> params, std::span<const Tensor> before);
  // What a step must know and tell. Throws Error, in the name of the optimizer that has stepped in round `last`
  // already, when no backward came since.
  void check_round(std::string_view optimizer, uint64_t last) const;
  uint64_t round() const { return round_; }
  bool round_open() const { return open_; }  // a backward came, and no step since
  Scaling take();                            // for a step, which ends the round
  void abandon();                            // the gradients were dropped

  ScalerState read(int id) const;  // waits for the device
  void write(int id, const ScalerState& state) const;

 private:
  void note_loss();

  ScalerOptions options_;
  int count_;
  bool delayed_;
  Tensor states_;
  Tensor seed_;         // delayed, on CUDA: a scalar f32 that is the scale
  Tensor loss_;         // of the newest backward, not looked at yet
  bool first_ = false;  // that was the round's first
  uint64_t round_ = 0, moving_ = 0;
  bool open_ = false;  // a backward came, no step yet
  bool scaled_ = false;
};

// Buffers that ops write while they compute (running statistics). Each has a snapshot from the last applied step.
class BufferGuard {
 public:
  struct Entry {
    Var buffer;
    Tensor value, snapshot;  // value: buffer.value() when the snapshot was taken
    uint64_t version = 0;    // of value
  };
  explicit BufferGuard(std::span<const Var> buffers = {});
  // Before the first op after a step: takes what others have written (a loaded checkpoint) as committed. On the host.
  // True at that first op.
  bool refresh();
  const std::vector<Entry>& entries() const { return entries_; }
  // After a step: puts the snapshot back if it was skipped, else takes a new one. The entries, for the device's side.
  std::span<const Entry> settle();
  void settle_cpu(bool skipped);

 private:
  std::vector<Entry> entries_;
  bool settled_ = true;  // no op since the last step
};

// A struct in the bytes of a tensor, by copy.
template <class T>
T read_struct(const Tensor& bytes, int64_t index = 0) {
  const Tensor row = bytes.rows(index * int64_t{sizeof(T)}, (index + 1) * int64_t{sizeof(T)}).to(Device::cpu());
  T value;
  std::copy_n(row.data<uint8_t>(), sizeof(T), reinterpret_cast<uint8_t*>(&value));
  return value;
}
template <class T>
void write_struct(const T& value, const Tensor& bytes, int64_t index = 0) {
  bytes.rows(index * int64_t{sizeof(T)}, (index + 1) * int64_t{sizeof(T)})
      .copy_(Tensor::of<uint8_t>({reinterpret_cast<const uint8_t*>(&value), sizeof(T)}, {int64_t{sizeof(T)}}));
}

// What Amp gives an optimizer to step by, and keeps alive: an optimizer refers to it weakly.
struct StepControl {
  std::shared_ptr<LossScaler> scaler;
  BufferGuard buffers;
  int first_index = 0;         // of the optimizer's parameters in the list that ScalerState::first_bad counts
  uint64_t stepped_round = 0;  // the round of its last step
  // The optimizer's, set by attach: its name, the names of its parameters, StepRecord as bytes, the applied steps.
  std::string optimizer;
  std::vector<std::string> keys;
  Tensor record, applied;

  // Throws Error, which names the cause, when max_consecutive_skips steps in a row were skipped. Waits for the device.
  void check_skips() const { check_skips(read_struct<StepRecord>(record)); }
  void check_skips(const StepRecord& record) const;
  // Why the last step was skipped.
  std::string cause(const StepRecord& record) const;
};

// True when no element is an infinity or a NaN. CPU.
bool all_finite(const Tensor& t);

// The CUDA side (optim/loss_scaler.cu).
// `seed` may be undefined.
void begin_backward_cuda(const Tensor& states, int count, int id, bool first, const Tensor& loss, const Tensor& seed);
void unscale_cuda(const Tensor& states, int id, std::span<const Tensor> grads, std::span<const Tensor> sums,
                  std::span<const int> indices);

}  // namespace ht::optim
