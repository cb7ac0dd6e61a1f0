// Small device passes around library calls (ops/pad_channels.cu).
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace ht {

// to[..., c] = from[..., c], and 0 where only `to` has the channel.
void copy_channels_cuda(Context& ctx, const Tensor& from, const Tensor& to);
// y[..., c] += bias[c]
void add_bias_cuda(Context& ctx, const Tensor& bias, const Tensor& y);

}  // namespace ht
