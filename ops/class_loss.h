// What the losses over integer labels share: their checks, and the declarations of their CUDA side.
#pragma once

#include "autograd/var.h"
#include "ops/ops.h"

namespace ht {

// x [n, classes] floating, labels [n] i32 or i64; the output is a scalar of x's dtype or, of a half x that is `widened`
// (Op::widen), FP32. Throws Error otherwise.
inline TensorSpec infer_class_loss(std::string_view who, std::string_view x_name, Inputs in, bool widened) {
  const Tensor &x = in[0], &labels = in[1];
  const auto arguments = [&] { return str("(", Named{x_name, x}, ", ", Named{"labels", labels}, ")"); };
  if (!is_floating(x.dtype())) fail(who, ": ", x_name, " must be floating; cast() it first ", arguments());
  if (x.rank() != 2) fail(who, ": ", x_name, " must be [n, classes] but has rank ", x.rank(), " ", arguments());
  if (labels.dtype() != DType::i32 && labels.dtype() != DType::i64)
    fail(who, ": labels must be i32 or i64 class indices ", arguments());
  if (labels.shape() != Shape{x.dim(0)}) fail(who, ": labels must be [", x.dim(0), "], one a row ", arguments());
  return {{}, widened && is_half(x.dtype()) ? DType::f32 : x.dtype()};
}

// Throws Error naming the first row whose label is not a class. `labels` are i64 on the CPU.
inline void check_labels(std::string_view who, std::string_view x_name, const Tensor& x, const Tensor& labels) {
  const int64_t* label = labels.data<int64_t>();
  for (int64_t i = 0; i < x.dim(0); ++i)
    check(label[i] >= 0 && label[i] < x.dim(1), who, ": label ", label[i], " of row ", i, " is not in [0, ", x.dim(1),
          "); labels are class indices from 0 (", Named{x_name, x}, ", ", Named{"labels", labels}, ")");
}

// What one row counts: 1 / n for the mean (NaN stays what the mean of no rows is), 1 for the sum.
inline double reduction_weight(Reduction reduction, int64_t n) {
  return reduction == Reduction::mean ? 1.0 / static_cast<double>(n) : 1.0;
}

// The CUDA launchers (ops/class_loss.cu); labels i32 or i64; loss and dy of x's dtype or, beside a half x, FP32. stats
// [n, 2] in FP32 (f64 for f64) holds per row the maximum m and log sum e^(x - m).
void cross_entropy_forward_cuda(Context& ctx, const CrossEntropyOptions& options, const Tensor& logits,
                                const Tensor& labels, const Tensor& stats, const Tensor& loss);
void cross_entropy_backward_cuda(Context& ctx, const CrossEntropyOptions& options, const Tensor& logits,
                                 const Tensor& labels, const Tensor& stats, const Tensor& dy, const Tensor& dx);
void nll_loss_forward_cuda(Context& ctx, Reduction reduction, const Tensor& x, const Tensor& labels,
                           const Tensor& loss);
void nll_loss_backward_cuda(Context& ctx, Reduction reduction, const Tensor& labels, const Tensor& dy,
                            const Tensor& dx);

}  // namespace ht
