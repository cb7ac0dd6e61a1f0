#include "autograd/var.h"

#include <map>
#include <utility>

#include "autograd/tape.h"
#include "core/captured_step.h"
#include "core/range.h"

namespace ht {

namespace {
thread_local bool recording = true;
thread_local InputHook* current_hook = nullptr;
}  // namespace

VarState::~VarState() {
  if (tape) tape->release(node);
}

Var::Var(Tensor value, bool requires_grad) : state_(std::make_shared<VarState>(std::move(value), requires_grad)) {
  check(!requires_grad || is_floating(state_->value.dtype()), "var: only floating tensors can require a gradient (",
        state_->value, ")");
}

const Tensor& Var::value() const {
  check(defined(), "var: the Var is undefined");
  return state_->value;
}

bool Var::requires_grad() const { return defined() && state_->requires_grad; }

void Var::set_requires_grad(bool on) const {
  check(is_leaf(), "var: set_requires_grad on a result of ops; detach() it first (", Named{"var", value()}, ")");
  check(!on || is_floating(dtype()), "var: only floating tensors can require a gradient (", value(), ")");
  state_->requires_grad = on;
}

bool Var::is_leaf() const { return !defined() || state_->tape == nullptr; }

void Var::set_value(Tensor value) const {
  check(defined() && is_leaf(), "var: set_value needs a leaf");
  state_->value = std::move(value);
  state_->twin = {};
}

Tensor Var::grad() const {
  check(defined(), "var: the Var is undefined");
  return state_->grad.defined() ? state_->grad.to(dtype()) : Tensor();
}

Tensor& Var::grad_slot() const {
  check(defined(), "var: the Var is undefined");
  return state_->grad;
}

void Var::zero_grad() const {
  grad_slot() = {};
  state_->grad_scaled = false;
}

bool Var::has_half_copy(DType dtype) const { return state_->twin_agrees() && state_->twin.dtype() == dtype; }

Tensor Var::half_copy(DType dtype) const {
  check(is_leaf() && is_half(dtype) && value().dtype() == DType::f32,
        "var: half_copy needs an FP32 leaf and a half dtype, not ", dtype, " (", Named{"var", value()}, ")");
  VarState& s = *state_;
  if (!s.twin.defined() || s.twin.dtype() != dtype) {
    s.twin = s.value.to(dtype);
  } else if (!s.twin_agrees()) {
    s.twin.copy_(s.value);
  }
  s.mark_twin();
  return s.twin;
}

void Var::set_half_with_master(DType dtype) const {
  check(is_leaf() && is_half(dtype) && value().dtype() == DType::f32,
        "var: set_half_with_master needs an FP32 leaf and a half dtype, not ", dtype, " (", Named{"var", value()}, ")");
  Tensor master = value();
  set_value(master.to(dtype));
  zero_grad();
  state_->twin = std::move(master);
  state_->mark_twin();
}

const Tensor& Var::master() const {
  const Tensor& v = value();
  if (!is_half(v.dtype()) || !state_->twin.defined()) return v;
  if (!state_->twin_agrees()) {
    state_->twin.copy_(v);
    state_->mark_twin();
  }
  return state_->twin;
}

void Var::to(Device device) const {
  const Tensor twin = state_->twin;
  const bool fresh = state_->twin_agrees();
  set_value(value().to(device));
  if (!fresh) return;
  state_->twin = twin.to(device);
  state_->mark_twin();
}

void Var::load(const Tensor& from) const {
  value().copy_(from);
  if (!is_half(dtype()) || !state_->twin.defined()) return;
  state_->twin.copy_(from);
  state_->mark_twin();
}

namespace {
// The 1 that backward starts with where there is one element. On CUDA a scalar's is made once: ops only read it, and a
// slot that would keep it takes a copy.
Tensor one_of(const TensorSpec& spec, Device device) {
  if (!device.is_cuda() || spec.shape.rank() > 0) return Tensor::full(spec.shape, 1, spec.dtype, device);
  thread_local std::map<std::pair<DType, int>, Tensor> ones;
  const std::pair key{spec.dtype, device.index};
  const auto it = ones.find(key);
  if (it != ones.end()) return it->second;
  const Tensor one = Tensor::full({}, 1, spec.dtype, device);
  if (!is_recording()) ones.emplace(key, one);  // else its memory is the recording's
  return one;
}
}  // namespace

Tensor expected_seed(DType dtype, Device device) {
  if (!current_hook) return one_of({{}, dtype}, device);
  const Tensor seed = current_hook->seed();
  return seed && seed.dtype() == dtype && seed.device() == device ? seed : Tensor();
}

void Var::backward(const Tensor& seed, bool retain_graph) const {
  check(requires_grad(), "backward: the Var does not require a gradient (", Named{"var", value()},
        "); it is data, or was made under no_grad");
  check(seed.defined() || value().numel() == 1, "backward: needs a seed, since the output has ", value().numel(),
        " elements (", Named{"output", value()}, ")");
  check(!seed.defined() || (seed.shape() == shape() && seed.device() == device()), "backward: the seed does not fit (",
        Named{"seed", seed}, ", ", Named{"output", value()}, ")");
  Tensor dy = seed.defined() ? seed.to(dtype()) : one_of(value().spec(), device());
  if (is_leaf()) {
    accumulate(state_->grad, std::move(dy));
  } else {
    const std::shared_ptr<Tape> tape = state_->tape;
    tape->backward(state_->node, std::move(dy), retain_graph);
  }
}

Var Var::detach() const { return Var(value()); }

Var apply(std::unique_ptr<Op> op, std::vector<Var> inputs) {
  if (current_hook) current_hook->before(*op, inputs);
  std::vector<Tensor> in;
  in.reserve(inputs.size());
  for (const Var& v : inputs) {
    check(v.defined() && v.value().defined(), op->name(), ": input ", in.size(), " is undefined");
    in.push_back(v.value());
    check(in.back().device() == in.front().device(), op->name(), ": inputs are on two devices (",
          Named{"input 0", in.front()}, ", ", Named{str("input ", in.size() - 1), in.back()}, "); move one with to()");
  }
  check(!in.empty(), op->name(), ": no inputs");
  const TensorSpec spec = op->infer(in);
  const Tensor y = [&] {
    const Range range(op->name(), "forward", op.get());
    try {
      Tensor out = op->forward(Context::of(in.front().device()), in, spec);
      range.touches(in);
      range.touches({&out, 1});
      return out;
    } catch (const Error& e) {
      const std::string_view text = e.what();
      if (text.starts_with(op->name())) throw;
      throw Error(str(op->name(), ": ", text));
    }
  }();
  check(y.shape() == spec.shape && y.dtype() == spec.dtype, op->name(), ": forward gave ", y, ", infer promised ",
        spec.shape, " ", spec.dtype);
  if (current_hook) current_hook->after(*op, y);

  bool wanted = false;
  std::shared_ptr<Tape> tape;
  for (const Var& v : inputs) {
    wanted |= v.requires_grad();
    if (v.is_leaf()) continue;
    check(!recording || !tape || tape == v.state()->tape, op->name(),
          ": inputs come from two graphs, one of them already walked by backward; detach() the old one");
    tape = v.state()->tape;
  }
  if (!recording || !wanted) return Var(y);
  if (!tape) tape = Tape::current();
  std::vector<Tape::Edge> edges;
  edges.reserve(inputs.size());
  for (const Var& v : inputs) edges.push_back(Tape::edge_to(v));
  auto state = std::make_shared<VarState>(y, true);
  tape->record(std::move(op), std::move(edges), *state);
  state->tape = std::move(tape);
  return Var(std::move(state));
}

InputHook* set_input_hook(InputHook* hook) { return std::exchange(current_hook, hook); }
InputHook* input_hook() { return current_hook; }

no_grad::no_grad() : before_(std::exchange(recording, false)) {}
no_grad::~no_grad() { recording = before_; }
bool grad_enabled() { return recording; }

}  // namespace ht
