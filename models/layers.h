// The layers: Modules that hold the parameters of an op. Names, defaults, state_dict names and initialisation are
// PyTorch's; images are NHWC and convolution weights [out, kh, kw, in] (files hold PyTorch's order, see Module).
// Parameters are public, as `layer.weight`. Constructors throw Error on sizes that make no sense.
#pragma once

#include "autograd/module.h"
#include "ops/ops.h"

namespace ht::nn {

class BatchNorm2d;

struct ConvOptions {
  int64_t stride = 1, padding = 0, dilation = 1;
  bool bias = true;
};
// [n, h, w, in] -> [n, oh, ow, out]. Weight and bias start uniform in +-1 / sqrt(in * kernel^2).
class Conv2d : public Module {
 public:
  Conv2d(int64_t in, int64_t out, int64_t kernel, const ConvOptions& options = {});
  Var forward(const Var& x) override;
  std::string describe() const override;

  Conv2dOptions options() const;
  // Becomes norm(conv(x)) in evaluation mode: a = gamma / sqrt(running_var + eps) scales each output channel's weights,
  // and the bias, added where there was none, becomes beta + a (bias - running_mean). Computed in f64. Throws Error
  // unless the norm has this layer's output channels.
  void fold(const BatchNorm2d& norm);

  Var weight;  // [out, kernel, kernel, in]
  Var bias;    // [out] or undefined

 private:
  ConvOptions options_;
};

struct LinearOptions {
  bool bias = true;
  // Set for the first Linear after a Flatten of a map [n, h, w, c] larger than 1x1: files then keep its columns in
  // PyTorch's order (c, h, w).
  SpatialLayout spatial = {};
};
// [..., in] -> [..., out]. Weight and bias start uniform in +-1 / sqrt(in).
class Linear : public Module {
 public:
  Linear(int64_t in, int64_t out, const LinearOptions& options = {});
  Var forward(const Var& x) override;
  std::string describe() const override;

  Var weight;  // [out, in]
  Var bias;    // [out] or undefined
};

struct NormOptions {
  double eps = 1e-5;
  double momentum = 0.1;  // weight of the newest batch in the running statistics
};
// Normalises each channel over all other axes: [n, h, w, c]. Evaluation uses the running statistics.
class BatchNorm2d : public Module {
 public:
  explicit BatchNorm2d(int64_t channels, const NormOptions& options = {});
  Var forward(const Var& x) override;
  std::string describe() const override;

  Var weight, bias;               // gamma (1) and beta (0), [c]
  Var running_mean, running_var;  // buffers [c], 0 and 1 at first
  Var num_batches_tracked;        // buffer [] i64: training forwards so far

  // What forward hands to batch_norm; a fused op takes the same.
  RunningStats running() const { return {running_mean.value(), running_var.value(), num_batches_tracked.value()}; }
  BatchNormOptions options() const;
  void check_rank(const Var& x) const;  // throws Error unless x has the rank that the layer normalises

 protected:
  BatchNorm2d(int64_t channels, const NormOptions& options, int rank);

 private:
  NormOptions options_;
  int rank_;
};

// The same over [n, c].
class BatchNorm1d : public BatchNorm2d {
 public:
  explicit BatchNorm1d(int64_t channels, const NormOptions& options = {}) : BatchNorm2d(channels, options, 2) {}
};

// Layers without parameters.
class ReLU : public Module {
 public:
  Var forward(const Var& x) override { return relu(x); }
  std::string describe() const override { return "ReLU()"; }
};
class Sigmoid : public Module {
 public:
  Var forward(const Var& x) override { return sigmoid(x); }
  std::string describe() const override { return "Sigmoid()"; }
};
class Tanh : public Module {
 public:
  Var forward(const Var& x) override { return tanh(x); }
  std::string describe() const override { return "Tanh()"; }
};
class GELU : public Module {
 public:
  Var forward(const Var& x) override { return gelu(x); }
  std::string describe() const override { return "GELU()"; }
};

// [n, h, w, c] -> [n, oh, ow, c]; stride 0 means the kernel.
class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(int64_t kernel = 2, int64_t stride = 0, int64_t padding = 0);
  Var forward(const Var& x) override { return max_pool2d(x, options_); }
  std::string describe() const override;
  const Pool2dOptions& options() const { return options_; }

 private:
  Pool2dOptions options_;
};
class AvgPool2d : public Module {
 public:
  explicit AvgPool2d(int64_t kernel = 2, int64_t stride = 0, int64_t padding = 0);
  Var forward(const Var& x) override { return avg_pool2d(x, options_); }
  std::string describe() const override;

 private:
  Pool2dOptions options_;
};
// [n, h, w, c] -> [n, 1, 1, c]
class GlobalAvgPool2d : public Module {
 public:
  Var forward(const Var& x) override { return global_avg_pool2d(x); }
  std::string describe() const override { return "GlobalAvgPool2d()"; }
};

// Zeroes elements with probability p while training, by a fresh stream each call.
class Dropout : public Module {
 public:
  explicit Dropout(double p = 0.5);
  Var forward(const Var& x) override { return dropout(x, p_, training()); }
  std::string describe() const override { return str("Dropout(", p_, ")"); }

 private:
  double p_;
};

// [n, h, w, c] -> [n, h * w * c]: a view, in NHWC order (see LinearOptions::spatial).
class Flatten : public Module {
 public:
  explicit Flatten(int start_axis = 1) : start_axis_(start_axis) {}
  Var forward(const Var& x) override { return flatten(x, start_axis_); }
  std::string describe() const override { return "Flatten()"; }

 private:
  int start_axis_;
};

}  // namespace ht::nn
