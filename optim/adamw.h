// AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019), by PyTorch's formulas.
#pragma once

#include "optim/optimizer.h"

namespace ht::optim {

// One plain struct a group, as a device keeps it.
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

class AdamW final : public Optimizer {
 public:
  // Throw Error on a hyperparameter that is negative or not finite, or a beta of 1 and above.
  explicit AdamW(std::vector<Var> params, AdamWOptions options = {});
  explicit AdamW(std::vector<ParamGroup<AdamWOptions>> groups);

  AdamWOptions options(size_t group = 0) const;

 private:
  void add(std::vector<Var> params, const AdamWOptions& options);
  void update(size_t group, const Rate& rate, std::span<const UpdateItem> items, const GradRule& rule) override;

  std::vector<AdamWOptions> options_;
};

// The CUDA side (optim/adamw.cu).
void adamw_cuda(const AdamWOptions& options, const Rate& rate, std::span<const UpdateItem> items, const GradRule& rule);

}  // namespace ht::optim
