// The kernels of conv2d: the CPU's (ops/conv2d_cpu.cpp) and the CUDA side's launchers.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/ops.h"

namespace ht {

// x [n, h, w, in], weight [out, kh, kw, in], y [n, oh, ow, out].
struct Conv2dShape {
  int64_t n, h, w, in, out, kh, kw, oh, ow;
  int64_t stride, padding, dilation;
  int64_t taps() const { return kh * kw; }
  // Each output pixel reads exactly its own input pixel: a plain matrix product.
  bool pointwise() const { return taps() == 1 && stride == 1 && padding == 0; }
};
Conv2dShape conv2d_shape(const Tensor& x, const Tensor& weight, const Conv2dOptions& options);

// Direct convolution as products of gathered rows, in blocks that fit a core's cache; no image-sized buffer. Results
// do not depend on the thread count. bias may be undefined.
void conv2d_forward_cpu(const Conv2dShape& s, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& y);
void conv2d_dgrad_cpu(const Conv2dShape& s, const Tensor& dy, const Tensor& weight, const Tensor& dx);
void conv2d_wgrad_cpu(const Conv2dShape& s, const Tensor& dy, const Tensor& x, const Tensor& dweight);

// `sums`, unless null, becomes the sums of y and of y^2 a channel, [2, out] f32, where that is faster than a pass over
// y.
void conv2d_forward_cuda(Context& ctx, const Conv2dShape& s, const Tensor& x, const Tensor& weight, const Tensor& bias,
                         const Tensor& y, Tensor* sums);
void conv2d_dgrad_cuda(Context& ctx, const Conv2dShape& s, const Tensor& dy, const Tensor& weight, const Tensor& dx);
// `beside`: beside the main chain, where that is possible.
void conv2d_wgrad_cuda(Context& ctx, const Conv2dShape& s, const Tensor& dy, const Tensor& x, const Tensor& dweight,
                       bool beside);

// Half types and few input channels, where own kernels (ops/few_channels.cu) beat the libraries'. `sums`, if defined:
// += the sums of y and of y^2 a channel, [2, out] f32.
bool has_few_channels(const Conv2dShape& s, DType dtype);
void few_channels_forward_cuda(Context& ctx, const Conv2dShape& s, const Tensor& x, const Tensor& weight,
                               const Tensor& y, const Tensor& sums);
void few_channels_wgrad_cuda(Context& ctx, const Conv2dShape& s, const Tensor& dy, const Tensor& x, const Tensor& dw);

}  // namespace ht
