// The CUDA launchers of batch_norm and of the ops fused from it (ops/batch_norm.cu).
#pragma once

#include "ops/ops.h"

namespace ht {

// What follows the normalisation in the same pass: ReLU, and after it a max pool of 2x2 windows. Backward recomputes
// the mask and the arg-max from x, so that nothing but x is stored.
struct BatchNormTail {
  bool relu = false;
  bool pool = false;  // needs relu and x [n, h, w, c]
};

// Writes y and the mean and 1 / sqrt(var + eps) that it used; updates the running tensors as ops.h says.
void batch_norm_forward_cuda(Context& ctx, const BatchNormOptions& options, const Tensor& x, const Tensor& gamma,
                             const Tensor& beta, const Tensor& running_mean, const Tensor& running_var, const Tensor& y,
                             const Tensor& mean, const Tensor& invstd, BatchNormTail tail = {});
// Undefined dx, dgamma or dbeta are not wanted. `training`: the statistics depend on x. beta is read with a tail only.
void batch_norm_backward_cuda(Context& ctx, bool training, const Tensor& x, const Tensor& gamma, const Tensor& beta,
                              const Tensor& mean, const Tensor& invstd, const Tensor& dy, const Tensor& dx,
                              const Tensor& dgamma, const Tensor& dbeta, BatchNormTail tail = {});

}  // namespace ht
