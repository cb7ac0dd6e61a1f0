// Every operation on Vars. Names and defaults are PyTorch's; images are NHWC [n, h, w, c], convolution weights
// [out, kh, kw, in]. All throw Error on shapes or dtypes that do not fit, naming the op, the fact and the arguments.
// Floating inputs of one call must share a dtype: cast() them, or let amp do it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "autograd/var.h"

namespace ht {

// ---- pointwise: any shape, floating --------------------------------------------------------------------------------
Var relu(const Var& x);     // max(x, 0); NaN stays NaN
Var sigmoid(const Var& x);  // 1 / (1 + e^-x)
Var tanh(const Var& x);
Var gelu(const Var& x);  // x * Phi(x), exact (erf) form
Var exp(const Var& x);
Var log(const Var& x);
Var sqrt(const Var& x);
Var rsqrt(const Var& x);       // 1 / sqrt(x)
Var reciprocal(const Var& x);  // 1 / x
Var neg(const Var& x);
Var abs(const Var& x);  // gradient 0 at 0
Var pow(const Var& x, double exponent);
Var scale(const Var& x, double factor);            // factor * x
Var clamp(const Var& x, double low, double high);  // gradient 1 inside [low, high], else 0
// The gradient comes back in x's dtype. Narrowing what cast widened gives the half Var itself: no such pair is
// recorded.
Var cast(const Var& x, DType dtype);
// The half copy of an FP32 parameter (Var::half_copy): no kernel while it is fresh. Its gradient stays half.
Var cast_parameter(const Var& parameter, DType dtype);

// ---- two inputs, NumPy broadcasting ---------------------------------------------------------------------------------
Var add(const Var& a, const Var& b);
Var sub(const Var& a, const Var& b);
Var mul(const Var& a, const Var& b);
Var div(const Var& a, const Var& b);
inline Var operator+(const Var& a, const Var& b) { return add(a, b); }
inline Var operator-(const Var& a, const Var& b) { return sub(a, b); }
inline Var operator*(const Var& a, const Var& b) { return mul(a, b); }
inline Var operator/(const Var& a, const Var& b) { return div(a, b); }
inline Var operator-(const Var& a) { return neg(a); }
inline Var operator*(const Var& a, double factor) { return scale(a, factor); }
inline Var operator*(double factor, const Var& a) { return scale(a, factor); }

// ---- reductions over chosen axes (negative count from the end; empty: all). FP32 accumulation for 16-bit inputs
// ------
struct ReduceOptions {
  std::vector<int> axes = {};
  bool keepdim = false;
};
Var sum(const Var& x, const ReduceOptions& options = {});
Var mean(const Var& x, const ReduceOptions& options = {});
Var var(const Var& x, const ReduceOptions& options = {}, int64_t correction = 1);  // two passes: mean, then squares
Var norm(const Var& x, const ReduceOptions& options = {});                         // L2; gradient 0 at 0

// ---- shape
// ------------------------------------------------------------------------------------------------------------
Var reshape(const Var& x, const std::vector<int64_t>& sizes);   // one size may be -1; a view
Var flatten(const Var& x, int start_axis = 1);                  // axes from start_axis on become one; a view
Var transpose(const Var& x, int axis0, int axis1);              // copies
Var slice(const Var& x, int axis, int64_t begin, int64_t end);  // [begin, end) of an axis
Var cat(const std::vector<Var>& xs, int axis = 0);

// ---- matrix products and convolution
// ---------------------------------------------------------------------------------- [m, k] x [k, n] -> [m, n];
// batched: leading axes equal, or b without them.
Var matmul(const Var& a, const Var& b);
// x [..., in], weight [out, in], bias [out] or undefined -> [..., out].
Var linear(const Var& x, const Var& weight, const Var& bias = {});

struct Conv2dOptions {
  int64_t stride = 1, padding = 0, dilation = 1;
};
// x [n, h, w, in], weight [out, kh, kw, in], bias [out] -> [n, oh, ow, out],
// oh = (h + 2 padding - dilation (kh - 1) - 1) / stride + 1, rounded down (cross-correlation, as everyone's).
Var conv2d(const Var& x, const Var& weight, const Conv2dOptions& options = {});
Var conv2d(const Var& x, const Var& weight, const Var& bias, const Conv2dOptions& options = {});

struct Pool2dOptions {
  int64_t kernel = 2;
  int64_t stride = 0;   // 0: the kernel
  int64_t padding = 0;  // at most kernel / 2
};
Var max_pool2d(const Var& x,
               const Pool2dOptions& options = {});  // padding never wins; the first maximum takes the gradient
Var avg_pool2d(const Var& x, const Pool2dOptions& options = {});  // padding counts as zeros, as PyTorch's default
Var global_avg_pool2d(const Var& x);                              // [n, h, w, c] -> [n, 1, 1, c]

// ---- normalisation, dropout
// -------------------------------------------------------------------------------------------
struct BatchNormOptions {
  bool training = true;
  double momentum = 0.1;  // running = (1 - momentum) running + momentum batch (variance unbiased)
  double eps = 1e-5;
};
// Written by every training forward; all may be undefined in training.
struct RunningStats {
  Tensor mean = {}, var = {};       // [c]
  Tensor num_batches_tracked = {};  // [] i64, optional: counts training forwards
};
// Over all axes but the last (Ioffe and Szegedy 2015). gamma, beta, running mean and variance are [c] and FP32 when x
// is 16-bit (f64 when x is f64). Training normalises by the batch and updates the running statistics, unless those of
// the batch are not finite; evaluation normalises by the running ones.
Var batch_norm(const Var& x, const Var& gamma, const Var& beta, const RunningStats& running,
               const BatchNormOptions& options = {});

// ---- fused: the same numbers as the composition, in fewer passes over memory and with less of it kept for backward
// -------------------------------------------------------------------------------------------
// relu(batch_norm(x)), and max_pool2d of it with 2x2 windows (x [n, h, w, c]).
Var bn_relu(const Var& x, const Var& gamma, const Var& beta, const RunningStats& running,
            const BatchNormOptions& options = {});
Var bn_relu_pool(const Var& x, const Var& gamma, const Var& beta, const RunningStats& running,
                 const BatchNormOptions& options = {});
// The same of conv2d(x, weight, bias); the bias may be undefined.
Var conv_bn_relu(const Var& x, const Var& weight, const Var& bias, const Var& gamma, const Var& beta,
                 const RunningStats& running, const Conv2dOptions& conv = {}, const BatchNormOptions& options = {});
Var conv_bn_relu_pool(const Var& x, const Var& weight, const Var& bias, const Var& gamma, const Var& beta,
                      const RunningStats& running, const Conv2dOptions& conv = {},
                      const BatchNormOptions& options = {});

// Zeroes with probability p and scales the rest by 1 / (1 - p); the identity when not training.
Var dropout(const Var& x, double p = 0.5, bool training = true);

// ---- probabilities and losses: `reduction` over all elements (rows for the classification losses)
// --------------------
enum class Reduction : uint8_t { mean, sum };
Var softmax(const Var& x, int axis = -1);
Var log_softmax(const Var& x, int axis = -1);
struct CrossEntropyOptions {
  double label_smoothing = 0;  // in [0, 1)
  Reduction reduction = Reduction::mean;
};
// logits [n, classes], labels [n] i32 or i64 in [0, classes): throws Error naming a label out of range (on the CPU).
Var cross_entropy(const Var& logits, const Var& labels, const CrossEntropyOptions& options = {});
Var nll_loss(const Var& log_probabilities, const Var& labels, Reduction reduction = Reduction::mean);
Var mse_loss(const Var& x, const Var& target, Reduction reduction = Reduction::mean);
Var l1_loss(const Var& x, const Var& target, Reduction reduction = Reduction::mean);
Var smooth_l1_loss(const Var& x, const Var& target, double beta = 1, Reduction reduction = Reduction::mean);
// x holds probabilities in [0, 1]; log is clamped at -100 as PyTorch's.
Var binary_cross_entropy(const Var& x, const Var& target, Reduction reduction = Reduction::mean);
Var binary_cross_entropy_with_logits(const Var& x, const Var& target, Reduction reduction = Reduction::mean);

}  // namespace ht
