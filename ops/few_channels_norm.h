// relu(batch_norm(conv2d(x))) of few input channels in half types, in training, without the convolution's output in
// memory (ops/few_channels_norm.cu).
#pragma once

#include <memory>

#include "ops/conv2d_kernels.h"
#include "ops/ops.h"

namespace ht {

std::unique_ptr<Op> make_few_channels_norm(const Conv2dShape& shape, const BatchNormOptions& options,
                                           const RunningStats& running);

bool fits_few_channels_norm(const Conv2dShape& s, DType dtype);
// Writes mean and invstd [out] of the convolution's output and updates the running statistics; gives what the weight's
// gradient needs of x.
Tensor few_channels_norm_forward_cuda(Context& ctx, const Conv2dShape& s, const BatchNormOptions& options,
                                      const Tensor& x, const Tensor& weight, const RunningStats& running,
                                      const Tensor& mean, const Tensor& invstd);
// y [n, oh, ow, out] from the statistics, the same bits each time.
void few_channels_norm_apply_cuda(Context& ctx, const Conv2dShape& s, const Tensor& x, const Tensor& weight,
                                  const Tensor& gamma, const Tensor& beta, const Tensor& mean, const Tensor& invstd,
                                  const Tensor& y);
// From y and its gradient dy; dgamma and dbeta may be undefined.
void few_channels_norm_wgrad_cuda(Context& ctx, const Conv2dShape& s, const Tensor& x, const Tensor& weight,
                                  const Tensor& gamma, const Tensor& mean, const Tensor& invstd, const Tensor& moments,
                                  const Tensor& y, const Tensor& dy, const Tensor& dw, const Tensor& dgamma,
                                  const Tensor& dbeta);

}  // namespace ht
