// Stochastic gradient descent with momentum, by PyTorch's formulas.
#pragma once

#include "optim/optimizer.h"

namespace ht::optim {

// One plain struct a group, as a device keeps it.
struct SgdOptions {
  double lr = 0.01;
  double momentum = 0;
  double dampening = 0;  // the gradient enters the momentum buffer times 1 - dampening
  bool nesterov = false;
  double weight_decay = 0;
  bool decoupled_weight_decay = false;  // p *= 1 - lr * weight_decay, in place of g += weight_decay * p
};

class Sgd final : public Optimizer {
 public:
  // Throw Error on a hyperparameter that is negative or not finite, or Nesterov without momentum or with dampening.
  explicit Sgd(std::vector<Var> params, SgdOptions options = {});
  explicit Sgd(std::vector<ParamGroup<SgdOptions>> groups);

  SgdOptions options(size_t group = 0) const;

 private:
  void add(std::vector<Var> params, const SgdOptions& options);
  void update(size_t group, const Rate& rate, std::span<const UpdateItem> items, const GradRule& rule) override;

  std::vector<SgdOptions> options_;
};

// The CUDA side (optim/sgd.cu).
void sgd_cuda(const SgdOptions& options, const Rate& rate, std::span<const UpdateItem> items, const GradRule& rule);

}  // namespace ht::optim
