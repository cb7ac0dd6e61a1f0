// What all optimizers share: parameter groups, the learning rate and its schedule, the count of applied steps, state
// for checkpoints. All that a step reads or writes lies in tensors on the parameters' device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/module.h"
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
  Tensor param;
  Tensor grad;                      // of the parameter's shape, in any floating dtype
  Tensor step;                      // [1] i64, updates of this parameter so far
  std::span<const Tensor> buffers;  // in the order of the optimizer's buffer names; FP32 (f64 for f64)
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  void zero_grad();
  // Updates every parameter that has a gradient and counts the step. Throws Error, before it changes anything, when a
  // gradient does not fit or a parameter has moved to another device or accumulation type.
  void step();

  // Steps applied so far; lr() is the rate of the next one. On a device both wait for it: for logs, not for steps.
  int64_t applied_steps() const;
  double lr(size_t group = 0) const;
  // A fixed rate from now on, in place of the schedule: of all groups, or of one.
  void set_lr(double lr);
  void set_lr(double lr, size_t group);
  // Each group's lr times schedule.factor(applied steps), sampled at 0 .. total_steps; later steps keep the last one.
  void set_schedule(const Schedule& schedule, int64_t total_steps);

  size_t group_count() const { return groups_.size(); }
  const std::vector<Var>& params(size_t group = 0) const;

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
  // Updates these parameters and raises each item's step.
  virtual void update(size_t group, const Rate& rate, std::span<const UpdateItem> items) = 0;

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
  std::vector<UpdateItem> items_of(const Group& group) const;
  const Group& group_at(size_t group) const;
  template <class F>
  void visit_state(F&& f) const;  // f(key, tensor)

  std::string name_;
  std::vector<Group> groups_;
  Tensor applied_;  // [1] i64
};

// Throws Error naming optimizer, field, value and group unless `value` is finite and at least 0.
void check_hyperparameter(std::string_view optimizer, std::string_view field, double value, size_t group);

// The CUDA side (optim/optimizer.cu): adds 1 to the counter.
void count_step_cuda(const Tensor& applied);

}  // namespace ht::optim
