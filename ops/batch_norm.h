// The CUDA launchers of batch_norm and of the ops fused from it (ops/batch_norm_forward.cu,
// ops/batch_norm_backward.cu).
#pragma once

#include "ops/ops.h"
#include "ops/parts.h"

namespace ht {

// Writes y and the mean and 1 / sqrt(var + eps) that it used; updates the running statistics as ops.h says. `sums` of x
// and of x^2 spare training a pass, where they are defined.
void batch_norm_forward_cuda(Context& ctx, const BatchNormOptions& options, const Tensor& x, const Tensor& gamma,
                             const Tensor& beta, const RunningStats& running, const Tensor& y, const Tensor& mean,
                             const Tensor& invstd, BatchNormTail tail, const Tensor& sums);
// The same in training, and backward with dx, in one kernel where the batch fits into the device's shared memory and
// the layout allows; else they return false and have done nothing (ops/batch_norm_resident.cu).
bool batch_norm_resident_forward_cuda(Context& ctx, const BatchNormOptions& options, const Tensor& x,
                                      const Tensor& gamma, const Tensor& beta, const RunningStats& running,
                                      const Tensor& y, const Tensor& mean, const Tensor& invstd, BatchNormTail tail);
bool batch_norm_resident_backward_cuda(Context& ctx, const Tensor& x, const Tensor& gamma, const Tensor& beta,
                                       const Tensor& mean, const Tensor& invstd, const Tensor& dy, const Tensor& dx,
                                       const Tensor& dgamma, const Tensor& dbeta, BatchNormTail tail);
// Whether forward would be: then nobody needs to make its sums.
bool batch_norm_is_resident_cuda(Context& ctx, const Tensor& x, BatchNormTail tail);
// y again from the mean and 1 / sqrt(var + eps) that it was made with.
void batch_norm_normalise_cuda(Context& ctx, const Tensor& x, const Tensor& gamma, const Tensor& beta,
                               const Tensor& mean, const Tensor& invstd, const Tensor& y, BatchNormTail tail);
// The pass for the sums alone, added to `sums` [2, c]: for its time.
void batch_norm_sums_cuda(Context& ctx, const Tensor& x, const Tensor& sums);
// Undefined dx, dgamma or dbeta are not wanted. `training`: the statistics depend on x.
void batch_norm_backward_cuda(Context& ctx, bool training, const Tensor& x, const Tensor& gamma, const Tensor& beta,
                              const Tensor& mean, const Tensor& invstd, const Tensor& dy, const Tensor& dx,
                              const Tensor& dgamma, const Tensor& dbeta, BatchNormTail tail);

}  // namespace ht
