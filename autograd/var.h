// A Var is a tensor with a gradient: a handle shared by all its copies. Leaves (parameters, data) hold a gradient slot;
// the others know the tape node that made them.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "autograd/op.h"
#include "core/tensor.h"

namespace ht {

class Tape;
struct VarState;

class Var {
 public:
  Var() = default;
  // A leaf. Implicit, so that data passes wherever a Var is expected.
  Var(Tensor value, bool requires_grad = false);
  explicit Var(std::shared_ptr<VarState> state) : state_(std::move(state)) {}

  bool defined() const { return state_ != nullptr; }
  explicit operator bool() const { return defined(); }
  const Tensor& value() const;
  const Shape& shape() const { return value().shape(); }
  int64_t dim(int axis) const { return value().dim(axis); }
  DType dtype() const { return value().dtype(); }
  Device device() const { return value().device(); }
  double item() const { return value().item(); }

  bool requires_grad() const;
  void set_requires_grad(bool on) const;  // leaves only
  bool is_leaf() const;
  // Replaces a leaf's tensor for every handle (another device or dtype, loaded weights).
  void set_value(Tensor value) const;

  // The gradient in the leaf's dtype; undefined before any backward and after zero_grad.
  Tensor grad() const;
  // The slot as stored: a half gradient stays half until a second contribution makes it FP32. For optimizers.
  Tensor& grad_slot() const;
  void zero_grad() const;

  // The half copy of an FP32 leaf, in f16 or bf16: kept with the leaf, made at the first call and brought up to date
  // when the value was written since. Optimizers write it together with the value. Throws Error on another leaf.
  Tensor half_copy(DType dtype) const;
  bool has_half_copy(DType dtype) const;  // up to date, so that half_copy has nothing to do
  // Makes an FP32 leaf half and keeps its present value as the FP32 master beside it.
  void set_half_with_master(DType dtype) const;
  // What optimizers move and checkpoints save: the FP32 master where there is one (taken from the value again when
  // that was written since), else value().
  const Tensor& master() const;
  // Copies `from` into the value and, if there is one, the master.
  void load(const Tensor& from) const;
  // Moves a leaf's value, with its half copy or master.
  void to(Device device) const;

  // Adds d(this)/d(leaf) to the gradient of every leaf that requires it. Without a seed this must be a scalar. Frees
  // the walked part of the graph unless retain_graph. Throws Error on a second walk, before it changes any gradient.
  void backward(const Tensor& seed = {}, bool retain_graph = false) const;
  // The same tensor without history.
  Var detach() const;

  const std::shared_ptr<VarState>& state() const { return state_; }

 private:
  std::shared_ptr<VarState> state_;
};

// Told when a backward has written or added to the gradient of a leaf.
class GradWatcher {
 public:
  virtual ~GradWatcher() = default;
  virtual void written(const VarState& leaf) = 0;
};

struct VarState {
  VarState(Tensor v, bool grad) : value(std::move(v)), requires_grad(grad) {}
  ~VarState();
  VarState(const VarState&) = delete;
  VarState& operator=(const VarState&) = delete;

  Tensor value;
  bool requires_grad = false;
  Tensor grad;               // leaves
  bool grad_scaled = false;  // grad still holds amp's loss scale
  std::weak_ptr<GradWatcher> watcher;
  std::string name;            // parameters: "features.0.weight"
  std::shared_ptr<Tape> tape;  // non-leaves own their tape
  int node = -1;

  // The same numbers in the other precision: the half copy of an FP32 value, or the FP32 master of a half one. Whoever
  // writes both raises both versions, so they agree while the versions are as far apart as when they were made to: a
  // write to `value` alone shows.
  Tensor twin;
  uint64_t twin_lag = 0;
  bool twin_agrees() const { return twin.defined() && value.version() - twin.version() == twin_lag; }
  void mark_twin() { twin_lag = value.version() - twin.version(); }
  std::shared_ptr<VarState> widened_from;  // a cast to a wider dtype remembers the half Var, to give it back
};

// The one door: input hook, infer and check, forward, record.
Var apply(std::unique_ptr<Op> op, std::vector<Var> inputs);
// Moves a ready op object through the door: `apply(Relu{}, {x})`.
template <class O>
Var apply(O op, std::vector<Var> inputs) {
  return apply(std::unique_ptr<Op>(std::make_unique<O>(std::move(op))), std::move(inputs));
}

// Sees and may replace the inputs of every op on this thread before it runs, or lets the op widen them (amp's casts).
class InputHook {
 public:
  virtual ~InputHook() = default;
  virtual void before(Op& op, std::vector<Var>& inputs) = 0;
  // True when this op's treatment is not that of its tag, so that it must not vanish inside a fused one.
  virtual bool overrides(std::string_view /*op*/) const { return false; }
  // The seed of the next backward of a scalar, as it will be then, where one is chosen for the user: a scalar f32.
  virtual Tensor seed() const { return {}; }
  // For those who only look: the output of each forward; the gradients that each backward made of dy.
  virtual void after(const Op&, const Tensor& /*y*/) {}
  virtual void gradients(const Op&, const Tensor& /*dy*/, const Grads&) {}
};
// Installs a hook (nullptr: none) for this thread and returns the one before it.
InputHook* set_input_hook(InputHook* hook);
InputHook* input_hook();

// The seed with which the next backward of a scalar of this spec will start, as far as can be told now: a hook's,
// else 1. A loss that is one may make its gradient together with its value. Undefined: not known.
Tensor expected_seed(DType dtype, Device device);

// While alive, this thread records nothing: `ht::no_grad guard;`.
class no_grad {
 public:
  no_grad();
  ~no_grad();
  no_grad(const no_grad&) = delete;
  no_grad& operator=(const no_grad&) = delete;

 private:
  bool before_;
};
bool grad_enabled();

}  // namespace ht
