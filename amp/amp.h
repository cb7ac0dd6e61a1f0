// Automatic mixed precision: two lines turn FP32 training into it.
//   ht::amp::Amp amp = ht::amp::initialize(model, sgd, {.level = ht::amp::O1});
//   ...
//   amp.backward(loss);   // in place of loss.backward()
//   sgd.step();           // unscales, checks, then updates or skips, moves the loss scale: all on the device
#pragma once

#include <memory>
#include <vector>

#include "amp/autocast.h"
#include "amp/options.h"
#include "autograd/module.h"
#include "optim/optimizer.h"

namespace ht::amp {

// For logs: what the steps so far did. Reading it waits for the device.
struct Status {
  double scale = 1;
  int64_t growth_tracker = 0;  // good steps since the scale moved
  int64_t applied_steps = 0, skipped_steps = 0, consecutive_skips = 0;
  // Of the last skipped step: "the gradient of features.0.weight was not finite at loss scale 65536", "the loss was not
  // finite"; and its scale.
  std::string last_skip;
  double last_skip_scale = 0;
};

class Amp {
 public:
  Amp(Amp&&) noexcept;
  Amp& operator=(Amp&&) noexcept;
  ~Amp();  // casts and scaling end; half weights (O2, O3) stay half

  // Adds d(loss) times the loss scale to the gradients. Several calls before one step accumulate; the step is skipped
  // when one of them overflowed. With num_losses above 1 (or several optimizers) gradients are unscaled right here, by
  // the scaler of loss `id`. Throws Error on an FP16 loss whose scale does not fit FP16.
  void backward(const Var& loss, int id = 0, bool retain_graph = false);
  // Unscales the gradients before the step, to read or change them. Throws Error when they are unscaled already.
  void unscale();

  bool enabled() const;
  const Settings& settings() const;
  const Policy& policy() const { return settings().policy; }
  Autocast& autocast();  // to trace casts; throws Error when disabled
  // For reports: the parameters of all optimizers, the buffers that a skipped step restores, and where the random
  // numbers stood at the first op after the last step.
  const std::vector<Var>& parameters() const;
  std::vector<Var> buffers() const;
  uint64_t random_position() const;

  // Of a loss and of an optimizer. Throws Error, which names the cause, after max_consecutive_skips skips in a row.
  Status status(int id = 0, int optimizer = 0) const;
  double scale(int id = 0) const { return status(id).scale; }
  // What status() reads, as the device keeps it, and a status from copies of that on the CPU: to read without a wait.
  // Empty where amp is not enabled.
  std::vector<Tensor> status_sources(int id = 0, int optimizer = 0) const;
  Status status_of(std::span<const Tensor> copies, int id = 0, int optimizer = 0) const;

  // "loss_scaler.<id>.scale", "loss_scaler.<id>.growth_tracker", "optimizer.<i>.skipped_steps",
  // "optimizer.<i>.consecutive_skips". Weights and masters are the model's, the rest the optimizer's. Loading checks
  // everything first and changes nothing on error. Disabled: empty, and whatever is loaded is ignored.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  friend Amp initialize(const std::vector<Module*>&, const std::vector<optim::Optimizer*>&, const Options&);
  struct Impl;
  explicit Amp(std::unique_ptr<Impl> impl);
  void check_id(int id) const;
  std::unique_ptr<Impl> impl_;
};

// Prepares the model's weights and the optimizer for a level, and turns on its casts for this thread while the Amp
// lives. Call it after model.to(device). Throws Error on options that contradict each other, on parameters that are not
// FP32, and on an optimizer that another Amp steps.
Amp initialize(Module& model, optim::Optimizer& optimizer, const Options& options = {});
// Several models or optimizers that train together (a generator and a discriminator): one non-finite gradient skips the
// step of all optimizers that follow the same backward.
Amp initialize(const std::vector<Module*>& models, const std::vector<optim::Optimizer*>& optimizers,
               const Options& options = {});

}  // namespace ht::amp
