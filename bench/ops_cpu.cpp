// Milliseconds of each operation on the CPU, alone: bench_ops_cpu [batch] [threads] [milliseconds a case].
#include "bench/ops.h"
#include "core/parallel.h"
#include "ops/ops.h"
#include "optim/sgd.h"

namespace {
struct Halftone {
  using Var = ht::Var;
  using NoGrad = ht::no_grad;

  static Var randn(const ht::Shape& shape) {
    static uint64_t stream = 0;
    return ht::Tensor::normal(shape, {7, ++stream});
  }
  static Var image(int64_t n, int64_t size, int64_t channels) { return randn({n, size, size, channels}); }
  static Var conv_weight(int64_t out, int64_t kernel, int64_t in) { return randn({out, kernel, kernel, in}); }
  static Var labels(int64_t n, int64_t classes) {
    std::vector<int64_t> values(static_cast<size_t>(n));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i) % classes;
    return ht::Tensor::of<int64_t>(values, {n});
  }
  static ht::Tensor ones_like(const Var& y) { return ht::Tensor::full(y.shape(), 1, y.dtype()); }
  static void zero_grad(const Var& leaf) { leaf.zero_grad(); }

  static Var conv2d(const Var& x, const Var& w, int64_t padding) { return ht::conv2d(x, w, {.padding = padding}); }
  static Var batch_norm(const Var& x, const Var& gamma, const Var& beta, const Var& mean, const Var& var) {
    return ht::batch_norm(x, gamma, beta, {mean.value(), var.value()});
  }
  static Var max_pool2d(const Var& x) { return ht::max_pool2d(x); }
  static Var avg_pool2d(const Var& x) { return ht::avg_pool2d(x); }
  static Var cross_entropy(const Var& x, const Var& labels) { return ht::cross_entropy(x, labels); }
  static Var sum(const Var& x, int axis) { return ht::sum(x, {.axes = {axis}}); }
  static Var transpose(const Var& x) { return ht::transpose(x, 0, 1); }
  static Var to_f16(const Var& x) { return ht::cast(x, ht::DType::f16); }
  static auto sgd(const std::vector<Var>& weights) {
    return std::make_shared<ht::optim::Sgd>(weights, ht::optim::SgdOptions{.lr = 0.01, .momentum = 0.9});
  }
};
}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments a = bench::parse(argc, argv, "milliseconds a case", 100);
  ht::set_num_threads(a.threads);
  bench::report_ops<Halftone>("halftone", a);
}
