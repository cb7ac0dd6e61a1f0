#include "autograd/module.h"

namespace ht {

namespace {
// Swaps the last axis of [a, b, c] with the middle one.
Tensor swap_inner(const Tensor& t, int64_t a, int64_t b, int64_t c) {
  const Tensor out = Tensor::empty_like(t);
  dispatch_all(t.dtype(), [&]<class T>() {
    const T* in = t.data<T>();
    T* to = out.data<T>();
    for (int64_t i = 0; i < a; ++i)
      for (int64_t j = 0; j < b; ++j)
        for (int64_t k = 0; k < c; ++k) to[(i * c + k) * b + j] = in[(i * b + j) * c + k];
  });
  return out;
}

Shape file_shape(const Shape& s) { return s.rank() == 4 ? Shape{s[0], s[3], s[1], s[2]} : s; }

Tensor to_file(const Tensor& value, int64_t hw) {
  Tensor t = value.to(Device::cpu());
  t = is_floating(t.dtype()) ? t.to(DType::f32) : t;
  if (hw > 1) t = swap_inner(t, t.dim(0), hw, t.numel() / std::max<int64_t>(t.dim(0) * hw, 1));
  return (t.same_storage(value) ? t.clone() : t).view(file_shape(value.shape()));
}

Tensor from_file(const Tensor& stored, const Tensor& like, int64_t hw) {
  Tensor t = stored.to(Device::cpu());
  if (hw > 1) t = swap_inner(t, t.dim(0), t.numel() / std::max<int64_t>(t.dim(0) * hw, 1), hw);
  return t.view(like.shape());
}
}  // namespace

std::string list_keys(const std::vector<std::string>& keys) {
  std::string text;
  for (size_t i = 0; i < keys.size() && i < 8; ++i) text += (i ? ", " : "") + keys[i];
  if (keys.size() > 8) text += str(", and ", keys.size() - 8, " more");
  return text;
}

template <class F>
void Module::visit(const std::string& prefix, F&& f) const {
  for (const Entry& e : entries_) f(prefix + e.name, e);
  for (const auto& [name, child] : children_) child->visit(prefix + name + ".", f);
}

Var Module::operator()(const Var& x) {
  const Var y = forward(before_ ? before_(x) : x);
  return after_ ? after_(y) : y;
}

void Module::set_call_hooks(std::function<Var(const Var&)> before, std::function<Var(const Var&)> after) {
  before_ = std::move(before);
  after_ = std::move(after);
}

std::vector<std::pair<std::string, Var>> Module::named_parameters() const {
  std::vector<std::pair<std::string, Var>> out;
  visit("", [&](const std::string& name, const Entry& e) {
    if (!e.buffer) out.emplace_back(name, e.var);
  });
  for (const auto& [name, var] : out) var.state()->name = name;
  return out;
}

std::vector<std::pair<std::string, Var>> Module::named_buffers() const {
  std::vector<std::pair<std::string, Var>> out;
  visit("", [&](const std::string& name, const Entry& e) {
    if (e.buffer) out.emplace_back(name, e.var);
  });
  return out;
}

std::vector<Var> Module::parameters() const {
  std::vector<Var> out;
  for (auto& [name, var] : named_parameters()) out.push_back(std::move(var));
  return out;
}

int64_t Module::parameter_count() const {
  int64_t n = 0;
  for (const Var& p : parameters()) n += p.value().numel();
  return n;
}

void Module::train(bool on) {
  training_ = on;
  for (auto& [name, child] : children_) child->train(on);
}

void Module::to(Device device) {
  visit("", [&](const std::string&, const Entry& e) {
    e.var.to(device);
    if (e.var.grad_slot().defined()) e.var.grad_slot() = e.var.grad_slot().to(device);
  });
}

void Module::to(DType dtype) {
  check(is_floating(dtype), "module: to(", dtype, ") is not a floating dtype");
  visit("", [&](const std::string&, const Entry& e) {
    if (!is_floating(e.var.dtype()) || e.var.dtype() == dtype) return;
    e.var.set_value(e.var.master().to(dtype));
    e.var.zero_grad();
  });
}

void Module::zero_grad() {
  for (const Var& p : parameters()) p.zero_grad();
}

StateDict Module::state_dict() const {
  StateDict state;
  visit("", [&](const std::string& name, const Entry& e) {
    state[name] = to_file(e.var.master(), e.spatial.h * e.spatial.w);
  });
  return state;
}

void Module::load_state_dict(const StateDict& state, bool strict) {
  std::vector<std::string> missing, unexpected, mismatched;
  StateDict rest = state;
  visit("", [&](const std::string& name, const Entry& e) {
    const auto it = state.find(name);
    if (it == state.end()) {
      missing.push_back(name);
    } else if (!it->second.defined() || it->second.shape() != file_shape(e.var.shape())) {
      mismatched.push_back(str(name, " (file ", it->second, ", model ", file_shape(e.var.shape()), ")"));
    }
    rest.erase(name);
  });
  for (const auto& [name, tensor] : rest) unexpected.push_back(name);
  const bool ok = mismatched.empty() && (!strict || (missing.empty() && unexpected.empty()));
  check(ok, "load_state_dict: ", missing.size(), " missing [", list_keys(missing), "], ", unexpected.size(),
        " unexpected [", list_keys(unexpected), "], ", mismatched.size(), " mismatched [", list_keys(mismatched),
        "]; nothing was loaded");
  visit("", [&](const std::string& name, const Entry& e) {
    const auto it = state.find(name);
    if (it != state.end()) e.var.load(from_file(it->second, e.var.value(), e.spatial.h * e.spatial.w));
  });
}

Var Module::register_parameter(std::string name, Tensor value, SpatialLayout spatial) {
  if (value.rank() == 4) spatial = {value.dim(1), value.dim(2)};
  entries_.push_back({std::move(name), Var(std::move(value), true), spatial, false});
  return entries_.back().var;
}

Var Module::register_buffer(std::string name, Tensor value) {
  entries_.push_back({std::move(name), Var(std::move(value)), {}, true});
  return entries_.back().var;
}

void Module::adopt(std::string name, std::unique_ptr<Module> child) {
  children_.emplace_back(std::move(name), std::move(child));
}

}  // namespace ht
