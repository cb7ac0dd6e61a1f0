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

// What a convolution passes to the batch norm behind it within a fused op on CUDA.
struct ConvNorm {
  bool training = false;
  BatchNormTail tail;
  Tensor sums;  // where the convolution's kernel makes them: of y and of y^2 a channel, [2, c] f32
};

// A tail needs CUDA.
std::unique_ptr<Op> make_batch_norm(const RunningStats& running, const BatchNormOptions& options,
                                    BatchNormTail tail = {}, std::shared_ptr<ConvNorm> link = {});
std::unique_ptr<Op> make_conv2d(const Conv2dOptions& options, std::shared_ptr<ConvNorm> link = {});
std::unique_ptr<Op> make_max_pool2d(const Pool2dOptions& options);
std::unique_ptr<Op> make_relu();

}  // namespace ht
