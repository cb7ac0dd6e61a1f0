// The ops that fused ones are made of, as objects.
#pragma once

#include <memory>

#include "ops/ops.h"

namespace ht {

// What follows the normalisation in the same pass: ReLU, and after it a max pool of 2x2 windows. Backward recomputes
// the mask and the arg-max from x, so that nothing but x is stored.
struct BatchNormTail {
  bool relu = false;
  bool pool = false;  // needs relu and x [n, h, w, c]
};

// The input gradient of a batch norm with a ReLU, not computed yet: with v = x - mean, slope d + tilt v + shift where d
// is dy if slope v + beta > 0, else 0.
struct NormGradient {
  Tensor x, dy;
  Tensor coefficients;  // [5, c] f32: mean, slope, beta, tilt, shift
};

// What a convolution and the batch norm behind it pass to each other within a fused op on CUDA.
struct ConvNorm {
  bool wants_sums = false;  // in training
  Tensor sums;              // forward, where the convolution's kernel makes them: of y and of y^2 a channel, [2, c] f32
  bool takes_left = false;  // the convolution's weight gradient can start from a NormGradient
  bool only_weight = false;  // in this backward nobody wants the convolution's input gradient
  NormGradient left;         // then the batch norm leaves this to the convolution
};

// A tail needs CUDA.
std::unique_ptr<Op> make_batch_norm(const RunningStats& running, const BatchNormOptions& options,
                                    BatchNormTail tail = {}, std::shared_ptr<ConvNorm> link = {});
std::unique_ptr<Op> make_conv2d(const Conv2dOptions& options, std::shared_ptr<ConvNorm> link = {});
std::unique_ptr<Op> make_max_pool2d(const Pool2dOptions& options);
std::unique_ptr<Op> make_relu();

}  // namespace ht
