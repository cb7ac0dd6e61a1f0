// The inverse of broadcasting: what a gradient of the broadcast shape is for the operand.
#pragma once

#include "core/context.h"
#include "ops/broadcast.h"

namespace ht {

// Sums x over the axes that broadcasting `shape` to x's shape repeats, in x's dtype with FP32 (f64) accumulation. The
// same tensor or a view where nothing is repeated. The result depends on the values and shapes only, not on the number
// of threads. Throws Error when `shape` does not broadcast to x's shape.
Tensor reduce_to(Context& ctx, const Tensor& x, const Shape& shape);

// The CUDA launcher (ops/reduce_to.cu): axes with b_stride 0 are summed, the others address y.
void reduce_to_cuda(Context& ctx, const BroadcastPlan& plan, const Tensor& x, const Tensor& y);

}  // namespace ht
