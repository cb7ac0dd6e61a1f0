#include "models/layers.h"

#include <cmath>

#include "models/init.h"

namespace ht::nn {

namespace {
// PyTorch's default for weights: kaiming_uniform_ with a = sqrt(5), which is uniform in +-1 / sqrt(fan_in).
Tensor default_weight(const Shape& shape) {
  const Tensor t = Tensor::empty(shape);
  kaiming_uniform_(t, {.a = std::sqrt(5.0)});
  return t;
}

Tensor default_bias(int64_t n, const Tensor& weight) {
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in(weight)));
  const Tensor t = Tensor::empty({n});
  uniform_(t, -bound, bound);
  return t;
}

std::string pool_text(const Pool2dOptions& o) {
  return str("kernel ", o.kernel, ", stride ", o.stride > 0 ? o.stride : o.kernel,
             o.padding > 0 ? str(", padding ", o.padding) : "");
}

Pool2dOptions pool_options(const char* who, int64_t kernel, int64_t stride, int64_t padding) {
  check(kernel > 0 && stride >= 0 && padding >= 0 && padding <= kernel / 2, who, ": kernel ", kernel, ", stride ",
        stride, ", padding ", padding, "; the kernel must be positive and the padding at most half of it");
  return {.kernel = kernel, .stride = stride, .padding = padding};
}
}  // namespace

Conv2d::Conv2d(int64_t in, int64_t out, int64_t kernel, const ConvOptions& options) : options_(options) {
  check(in > 0 && out > 0 && kernel > 0, "Conv2d: in ", in, ", out ", out, ", kernel ", kernel,
        "; all must be positive");
  check(options.stride > 0 && options.padding >= 0 && options.dilation > 0, "Conv2d: stride ", options.stride,
        ", padding ", options.padding, ", dilation ", options.dilation,
        "; stride and dilation must be positive, the padding not negative");
  weight = register_parameter("weight", default_weight({out, kernel, kernel, in}));
  if (options.bias) bias = register_parameter("bias", default_bias(out, weight.value()));
}

Conv2dOptions Conv2d::options() const {
  return {.stride = options_.stride, .padding = options_.padding, .dilation = options_.dilation};
}

Var Conv2d::forward(const Var& x) { return conv2d(x, weight, bias, options()); }

void Conv2d::fold(const BatchNorm2d& norm) {
  const int64_t out = weight.dim(0), row = weight.value().numel() / out;
  check(norm.weight.dim(0) == out, "Conv2d: cannot fold a batch norm of ", norm.weight.dim(0),
        " channels into a convolution that gives ", out);
  const auto in_f64 = [](const Var& v) {
    const Tensor t = Tensor::empty(v.shape(), DType::f64);
    t.copy_(v.master());
    return t;
  };
  const Tensor w = in_f64(weight), b = bias ? in_f64(bias) : Tensor::zeros({out}, DType::f64);
  const Tensor gamma = in_f64(norm.weight), beta = in_f64(norm.bias);
  const Tensor mean = in_f64(norm.running_mean), var = in_f64(norm.running_var);
  for (int64_t o = 0; o < out; ++o) {
    const double a = gamma.at(o) / std::sqrt(var.at(o) + norm.options().eps);
    for (double* p = w.data<double>() + o * row; p < w.data<double>() + (o + 1) * row; ++p) *p *= a;
    b.data<double>()[o] = beta.at(o) + a * (b.at(o) - mean.at(o));
  }
  if (!bias) bias = register_parameter("bias", b);
  for (const auto& [parameter, value] : {std::pair(weight, w), std::pair(bias, b)})
    parameter.set_value(value.to(weight.dtype()).to(weight.device()));
}

std::string Conv2d::describe() const {
  const int64_t k = weight.dim(1);
  std::string text = str("Conv2d(", weight.dim(3), ", ", weight.dim(0), ", kernel ", k, "x", k);
  if (options_.stride != 1) text += str(", stride ", options_.stride);
  if (options_.padding != 0) text += str(", padding ", options_.padding);
  if (options_.dilation != 1) text += str(", dilation ", options_.dilation);
  return text + (bias ? ")" : ", no bias)");
}

Linear::Linear(int64_t in, int64_t out, const LinearOptions& options) {
  check(in > 0 && out > 0, "Linear: in ", in, ", out ", out, "; both must be positive");
  const auto [h, w] = options.spatial;
  check(h > 0 && w > 0 && in % (h * w) == 0, "Linear: in ", in, " is not a multiple of the map ", h, "x", w);
  weight = register_parameter("weight", default_weight({out, in}), options.spatial);
  if (options.bias) bias = register_parameter("bias", default_bias(out, weight.value()));
}

Var Linear::forward(const Var& x) { return linear(x, weight, bias); }

std::string Linear::describe() const {
  return str("Linear(", weight.dim(1), ", ", weight.dim(0), bias ? ")" : ", no bias)");
}

BatchNorm2d::BatchNorm2d(int64_t channels, const NormOptions& options) : BatchNorm2d(channels, options, 4) {}

BatchNorm2d::BatchNorm2d(int64_t channels, const NormOptions& options, int rank) : options_(options), rank_(rank) {
  check(channels > 0 && options.eps >= 0 && options.momentum >= 0 && options.momentum <= 1, "BatchNorm: channels ",
        channels, ", eps ", options.eps, ", momentum ", options.momentum,
        "; channels must be positive, eps not negative, momentum in [0, 1]");
  weight = register_parameter("weight", Tensor::full({channels}, 1));
  bias = register_parameter("bias", Tensor::zeros({channels}));
  running_mean = register_buffer("running_mean", Tensor::zeros({channels}));
  running_var = register_buffer("running_var", Tensor::full({channels}, 1));
  num_batches_tracked = register_buffer("num_batches_tracked", Tensor::zeros({}, DType::i64));
}

BatchNormOptions BatchNorm2d::options() const {
  return {.training = training(), .momentum = options_.momentum, .eps = options_.eps};
}

void BatchNorm2d::check_rank(const Var& x) const {
  check(x.shape().rank() == rank_, "BatchNorm", rank_ == 4 ? "2d" : "1d", ": expects rank ", rank_, " (",
        Named{"x", x.value()}, ")");
}

Var BatchNorm2d::forward(const Var& x) {
  check_rank(x);
  return batch_norm(x, weight, bias, running(), options());
}

std::string BatchNorm2d::describe() const {
  return str("BatchNorm", rank_ == 4 ? "2d" : "1d", "(", weight.dim(0), ", eps ", options_.eps, ", momentum ",
             options_.momentum, ")");
}

MaxPool2d::MaxPool2d(int64_t kernel, int64_t stride, int64_t padding)
    : options_(pool_options("MaxPool2d", kernel, stride, padding)) {}
std::string MaxPool2d::describe() const { return str("MaxPool2d(", pool_text(options_), ")"); }

AvgPool2d::AvgPool2d(int64_t kernel, int64_t stride, int64_t padding)
    : options_(pool_options("AvgPool2d", kernel, stride, padding)) {}
std::string AvgPool2d::describe() const { return str("AvgPool2d(", pool_text(options_), ")"); }

Dropout::Dropout(double p) : p_(p) { check(p >= 0 && p < 1, "Dropout: p ", p, " must be in [0, 1)"); }

}  // namespace ht::nn
