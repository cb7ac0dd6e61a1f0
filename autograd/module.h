// A Module owns named parameters, buffers and children. Names and file layouts are PyTorch's; inside everything is
// NHWC.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/var.h"

namespace ht {

using StateDict = std::map<std::string, Tensor>;
// "a, b, c", at most eight of them and then how many more: for the errors of load_state_dict.
std::string list_keys(const std::vector<std::string>& keys);

// How a matrix [out, h w c] is kept in files: as PyTorch's [out, c h w]. A weight of rank 4, [out, h, w, c], always
// becomes [out, c, h, w].
struct SpatialLayout {
  int64_t h = 1, w = 1;
};

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;

  virtual Var forward(const Var& x) = 0;
  Var operator()(const Var& x);
  // operator() is after(forward(before(x))); an empty function is the identity. amp casts a half model's input and
  // output so. A parent calls forward of its children, which passes these by.
  void set_call_hooks(std::function<Var(const Var&)> before, std::function<Var(const Var&)> after);
  // One line for a person: "Conv2d(3, 64, kernel 3x3, padding 1)".
  virtual std::string describe() const = 0;

  std::vector<Var> parameters() const;
  // Depth first, in order of registration: ("features.0.weight", Var). Buffers: running statistics.
  std::vector<std::pair<std::string, Var>> named_parameters() const;
  std::vector<std::pair<std::string, Var>> named_buffers() const;
  const std::vector<std::pair<std::string, std::unique_ptr<Module>>>& children() const { return children_; }
  int64_t parameter_count() const;

  void train(bool on = true);
  void eval() { train(false); }
  bool training() const { return training_; }
  // Moves every parameter and buffer. The dtype form converts floating ones and drops their gradients.
  void to(Device device);
  void to(DType dtype);
  void zero_grad();

  // Copies on the CPU in PyTorch's names and layouts (convolutions OIHW), floating ones as FP32.
  StateDict state_dict() const;
  // The inverse. Checks everything first and changes nothing on error. Strict: throws Error that lists missing,
  // unexpected and mismatched keys; otherwise only mismatched shapes are an Error and the rest is loaded.
  void load_state_dict(const StateDict& state, bool strict = true);

 protected:
  Var register_parameter(std::string name, Tensor value, SpatialLayout spatial = {});
  Var register_buffer(std::string name, Tensor value);
  template <class M>
  M& register_module(std::string name, M module) {
    auto owned = std::make_unique<M>(std::move(module));
    M& ref = *owned;
    adopt(std::move(name), std::move(owned));
    return ref;
  }
  void adopt(std::string name, std::unique_ptr<Module> child);
  void remove_child(size_t i) { children_.erase(children_.begin() + static_cast<std::ptrdiff_t>(i)); }

 private:
  struct Entry {
    std::string name;
    Var var;
    SpatialLayout spatial;
    bool buffer;
  };
  template <class F>
  void visit(const std::string& prefix, F&& f) const;

  std::vector<Entry> entries_;
  std::vector<std::pair<std::string, std::unique_ptr<Module>>> children_;
  bool training_ = true;
  std::function<Var(const Var&)> before_, after_;
};

}  // namespace ht
