// How transpose sees its input, shared by CPU and CUDA.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace ht {

// x [outer, rows, middle, columns, inner] -> y [outer, columns, middle, rows, inner].
struct TransposePlan {
  int64_t outer = 1, rows = 1, middle = 1, columns = 1, inner = 1;
};

// The CUDA launcher (ops/transpose.cu), any dtype.
void transpose_cuda(Context& ctx, const TransposePlan& plan, const Tensor& x, const Tensor& y);

}  // namespace ht
