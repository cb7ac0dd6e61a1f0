// What all optimizers share: parameter groups, the learning rate and its schedule, the count of applied steps, state
// for checkpoints. All that a step reads or writes lies in tensors on the parameters' device.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/module.h"
#include "optim/loss_scaler.h"
#include "optim/schedule.h"

namespace ht::optim {

template <class Options>
struct ParamGroup {
  std::vector<Var> params;
  Options options;
};

// A group's learning rate as a device can look it up: values[min(applied, n - 1)].
struct Rate {
  Tensor values;   // [n] f64
  Tensor applied;  // [1] i64, steps applied so far
  double now() const;
};

// One parameter that has a gradient in this step.
struct UpdateItem {
  Tensor param;                     // the FP32 master where the parameter itself is half
  Tensor grad;                      // of the parameter's shape, in any floating dtype
  Tensor step;                      // [1] i64, updates of this parameter so far
  std::span<const Tensor> buffers;  // in the order of the optimizer's buffer names; FP32 (f64 for f64)
  Tensor half;                      // to be written with `param`: its half copy; undefined: there is none
  int index = 0;                    // among all parameters, for reports

  int64_t numel() const { return param.numel(); }
};

// Clipping of the unscaled gradients within a step: by the L2 norm of all of them together, as clip_grad_norm_, then by
// value, as clip_grad_value_. Infinity: not.
struct ClipOptions {
  double norm = std::numeric_limits<double>::infinity();
  double value = std::numeric_limits<double>::infinity();
};

inline constexpr int kTableSize = 48;  // parameters that one launch takes: its table lies in the kernel's parameters

// Where the blocks of a launch meet (optim/whole_step.cuh). Two places, in turns, so that one can be cleared while
// late blocks still read the other.
struct Meeting {
  struct alignas(8) Place {
    uint32_t arrived = 0;  // blocks
    int32_t bad = 0;       // the largest parameter with a bad gradient, + 1
  } place[2];
  int32_t now = 0;
};

// A step of few numbers, whose one launch also judges the gradients before the update and counts and settles after it.
// All on the device.
struct WholeStep {
  Meeting* meeting = nullptr;
  int64_t* applied = nullptr;
  StepRecord* record = nullptr;  // null: no scaler, so that nothing is judged
  ScalerState* state = nullptr;
  float* seed = nullptr;
  const void* loss = nullptr;  // not looked at yet, or null
  DType loss_dtype = DType::f32;
  bool first = false, scaled = false;
  uint64_t moving = 0;
  ScalerOptions options;
};

// What becomes of the gradients of a step. On the CPU: skip() and transform(); kernels read the record themselves.
struct GradRule {
  Tensor record;  // StepRecord as bytes; undefined: neither a scaler nor clipping by norm
  double clip_value = std::numeric_limits<double>::infinity();
  std::optional<WholeStep> whole = {};

  StepRecord* on_device() const { return record ? reinterpret_cast<StepRecord*>(record.data<uint8_t>()) : nullptr; }
  bool skip() const { return record && on_device()->skip; }
  template <class A>
  GradTransform<A> transform() const {
    return grad_transform<A>(on_device(), clip_value);
  }
};

class EarlyCheck;

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  void zero_grad();
  // Updates every parameter that has a gradient, with its half copy, and counts the step. Throws Error, before it
  // changes anything, when a gradient does not fit or a parameter has moved to another device or accumulation type.
  // Under amp it unscales the gradients and, when one of them or the loss is not finite, skips: then nothing changes
  // but the loss scale, running statistics go back to what they were, and the step does not count. No host read.
  void step();
  // Clipping as a part of step(). Throws Error on a negative or NaN bound.
  void set_clip(const ClipOptions& clip);

  // Steps applied so far; lr() is the rate of the next one. On a device both wait for it: for logs, not for steps.
  int64_t applied_steps() const;
  double lr(size_t group = 0) const;
  // What the newest steps did: skipped steps, and the norm of the gradients when clipping by it. Waits for the device.
  StepRecord record() const;
  // As the device keeps them, for work beside or after a step: [1] i64; the next step's rate; null while no step can
  // be skipped.
  const Tensor& applied_counter() const { return applied_; }
  Rate rate(size_t group = 0) const { return {group_at(group).rates, applied_}; }
  const StepRecord* record_on_device() const;
  // Throws Error, which names the cause, when ScalerOptions::max_consecutive_skips steps in a row were skipped.
  // applied_steps() and lr() call it.
  void check_skips() const;
  // A fixed rate from now on, in place of the schedule: of all groups, or of one.
  void set_lr(double lr);
  void set_lr(double lr, size_t group);
  // Each group's lr times schedule.factor(applied steps), sampled at 0 .. total_steps; later steps keep the last one.
  void set_schedule(const Schedule& schedule, int64_t total_steps);

  size_t group_count() const { return groups_.size(); }
  const std::vector<Var>& params(size_t group = 0) const;
  std::vector<Var> all_params() const;
  std::vector<std::string> keys() const;  // of all_params, as state_dict names them
  Device device() const { return applied_.device(); }
  // Amp's: step() by this control while it lives. Throws Error when it is on another device.
  void attach(const std::shared_ptr<StepControl>& control);

  // "applied_steps" and, a parameter, "<key>.step" and its buffers ("<key>.momentum_buffer"), as copies on the CPU. The
  // key is the parameter's name in its module, or its number where names are missing or not unique. Hyperparameters
  // and schedule are not in it: whoever resumes builds the optimizer with them.
  StateDict state_dict() const;
  // Checks everything first and changes nothing on error; the Error lists missing, unexpected and mismatched keys.
  void load_state_dict(const StateDict& state);

 protected:
  explicit Optimizer(std::string_view name) : name_(name) {}
  // Called by constructors, then finish() once. Throws Error on an undefined, non-leaf, frozen or repeated parameter.
  void add_group(std::vector<Var> params, double lr, std::vector<std::string> buffer_names);
  void finish();
  double base_lr(size_t group) const { return groups_[group].lr; }
  // Updates these parameters and their half copies, unless the rule says skip. Leaves counting to the caller.
  virtual void update(size_t group, const Rate& rate, std::span<const UpdateItem> items, const GradRule& rule) = 0;

 private:
  struct Group {
    std::vector<Var> params;
    std::vector<std::string> keys;
    std::vector<std::string> buffer_names;
    std::vector<std::vector<Tensor>> buffers;  // a parameter
    Tensor steps;                              // [params] i64
    double lr;                                 // what the schedule multiplies
    Tensor rates;                              // [n] f64
  };
  std::vector<UpdateItem> items_of(const Group& group, int first_index) const;
  void make_record();
  bool clips_by_norm() const { return clip_.norm < std::numeric_limits<double>::infinity(); }
  bool takes_one_launch(std::span<const UpdateItem> items, const StepControl* control) const;
  GradRule judge_gradients(std::span<const UpdateItem> items, const StepControl* control, const Scaling& scaling);
  void finish_step(std::span<const UpdateItem> items, const GradRule& rule, StepControl* control,
                   const Scaling& scaling);
  const Group& group_at(size_t group) const;
  template <class F>
  void visit_state(F&& f) const;  // f(key, tensor)

  std::string name_;
  std::vector<Group> groups_;
  Tensor applied_;  // [1] i64
  ClipOptions clip_;
  Tensor record_;    // StepRecord as bytes, once a scaler or clipping needs it
  Tensor partials_;  // f64: working memory of the norm
  Tensor meeting_;   // Meeting as bytes, once a step is one launch on CUDA
  std::weak_ptr<StepControl> control_;
  std::shared_ptr<EarlyCheck> early_;  // under amp on CUDA
};

// Throws Error naming optimizer, field, value and group unless `value` is finite and at least 0.
void check_hyperparameter(std::string_view optimizer, std::string_view field, double value, size_t group);

// The CUDA side (optim/optimizer.cu). `partials` grows as needed; `first_bad` is of gradients that EarlyCheck has
// looked at, which are not among the items, or undefined.
void judge_gradients_cuda(std::span<const UpdateItem> items, const Tensor& record, Tensor& partials,
                          const Scaling& scaling, double max_norm, const Tensor& first_bad);
// Counts the step and each item's update and settles buffers, record and scales, all on the device. `record` undefined:
// no step is ever skipped.
void finish_step_cuda(std::span<const UpdateItem> items, const Tensor& applied, const Tensor& record,
                      std::span<const BufferGuard::Entry> buffers, const Scaling& scaling);

}  // namespace ht::optim
