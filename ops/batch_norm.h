// The CUDA launchers of batch_norm (ops/batch_norm.cu).
#pragma once

#include "ops/ops.h"

namespace ht {

// Writes y and the mean and 1 / sqrt(var + eps) that it used; updates the running tensors as ops.h says.
void batch_norm_forward_cuda(Context& ctx, const BatchNormOptions& options, const Tensor& x, const Tensor& gamma,
                             const Tensor& beta, const Tensor& running_mean, const Tensor& running_var, const Tensor& y,
                             const Tensor& mean, const Tensor& invstd);
// Undefined dx, dgamma or dbeta are not wanted. `training`: the statistics depend on x.
void batch_norm_backward_cuda(Context& ctx, bool training, const Tensor& x, const Tensor& gamma, const Tensor& mean,
                              const Tensor& invstd, const Tensor& dy, const Tensor& dx, const Tensor& dgamma,
                              const Tensor& dbeta);

}  // namespace ht
