// Modules one after another, numbered as PyTorch's ("0", "1", ...) or named.
#pragma once

#include <utility>

#include "autograd/module.h"

namespace ht::nn {

// Layers that together are a fused op run as one (models/fusion.h).
class Sequential : public Module {
 public:
  Sequential() = default;

  // Makes an M from `args` as the next child and returns it: `net.add<Linear>(784, 10)`.
  template <class M, class... Args>
  M& add(Args&&... args) {
    return append(M(std::forward<Args>(args)...));
  }
  // Moves a ready module in; without a name it is called by its number. Throws Error on a name that is empty, taken, or
  // has a dot.
  template <class M>
  M& append(M module, std::string name = {}) {
    return register_module(free_name(std::move(name)), std::move(module));
  }

  Var forward(const Var& x) override;
  size_t size() const { return children().size(); }
  void erase(size_t i);                             // the child; the others keep their names. Throws Error out of range
  Module& operator[](size_t i) const;               // throws Error out of range
  Module& operator[](std::string_view name) const;  // throws Error on an unknown name
  // The tree, a line a layer, without a line end at its end.
  std::string describe() const override;

 private:
  std::string free_name(std::string name) const;
};

}  // namespace ht::nn
