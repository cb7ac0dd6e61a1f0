// The kernels of conv2d: the CPU's (ops/conv2d_cpu.cpp) and the CUDA side's launchers.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"

namespace ht {

// x [n, h, w, in], weight [out, kh, kw, in], y [n, oh, ow, out].
struct Conv2dShape {
  int64_t n, h, w, in, out, kh, kw, oh, ow;
  int64_t stride, padding, dilation;
  int64_t taps() const { return kh * kw; }
  // Each output pixel reads exactly its own input pixel: a plain matrix product.
  bool pointwise() const { return taps() == 1 && stride == 1 && padding == 0; }
};

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

// With few input channels no cuDNN kernel is good, while a matrix product is: the columns of half x, [n, oh, ow, taps x
// in] padded with zeros to im2col_width(), a multiple of 8. A width of 0: it does not pay. Where there is a weight
// [out, ...], `wide` [out, ..., width] becomes that, padded alike.
int64_t im2col_width(const Conv2dShape& s);
void im2col_cuda(Context& ctx, const Conv2dShape& s, const Tensor& x, const Tensor& columns, const Tensor& weight = {},
                 const Tensor& wide = {});

}  // namespace ht
